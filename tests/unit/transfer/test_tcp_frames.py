import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.core.transport import Fragments
from headrace.transfer.tcp_frames import (
    HEAD_BYTES,
    MAX_FRAGMENTS,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameCodec,
    Kind,
    Range,
    cut_pieces,
    join_ranges,
)
from tests.support.transfer_world import fragments

KEY = b"key of one direction"
RANGES: list[Range] = [(4096, 100), (0, 1), (8192, 4096)]
FRAME = Frame(
    kind=Kind.WRITE, imm=3, write=9, region=2, total_bytes=9000, payload_bytes=4197, num_fragments=3
)


def unpack(codec: FrameCodec, data: bytes) -> tuple[Frame, list[Range]]:
    head = data[:HEAD_BYTES]
    frame = codec.unpack(head)
    return frame, codec.check(frame, head, data[HEAD_BYTES : HEAD_BYTES + frame.table_bytes])


def test_a_frame_comes_out_as_it_went_in() -> None:
    sender, receiver = FrameCodec(KEY), FrameCodec(KEY)
    for _ in range(3):
        data = sender.pack(FRAME, RANGES)
        assert len(data) == HEAD_BYTES + FRAME.table_bytes
        assert unpack(receiver, data) == (FRAME, RANGES)


def test_a_fence_has_no_table() -> None:
    fence = Frame(kind=Kind.FENCE, imm=1, write=5)
    data = FrameCodec(KEY).pack(fence)
    assert len(data) == HEAD_BYTES
    assert unpack(FrameCodec(KEY), data) == (fence, [])


@given(st.integers(0, 8 * (HEAD_BYTES + FRAME.table_bytes) - 1))
def test_no_flipped_bit_is_believed(bit: int) -> None:
    data = bytearray(FrameCodec(KEY).pack(FRAME, RANGES))
    data[bit // 8] ^= 1 << bit % 8
    codec = FrameCodec(KEY)
    with pytest.raises(ProtocolError):
        unpack(codec, bytes(data).ljust(HEAD_BYTES + 16 * MAX_FRAGMENTS))
    # And what was refused has not moved the sequence on.
    assert unpack(codec, FrameCodec(KEY).pack(FRAME, RANGES)) == (FRAME, RANGES)


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES))
def test_noise_is_refused_before_anything_is_read_on_its_word(noise: bytes) -> None:
    with pytest.raises(ProtocolError, match="magic"):
        FrameCodec(KEY).unpack(noise)
    with pytest.raises(ProtocolError):
        unpack(FrameCodec(KEY), b"HW\x01\x00" + noise[4:].ljust(16 * MAX_FRAGMENTS + 64))


def test_frames_replayed_dropped_or_swapped_are_refused() -> None:
    sender, receiver = FrameCodec(KEY), FrameCodec(KEY)
    first, second, third = (sender.pack(FRAME, RANGES) for _ in range(3))
    unpack(receiver, first)
    for wrong in (first, third):
        with pytest.raises(ProtocolError, match="expected frame 1"):
            unpack(receiver, wrong)
    unpack(receiver, second)


def test_a_frame_of_another_socket_is_refused() -> None:
    with pytest.raises(ProtocolError, match="wrong key"):
        unpack(FrameCodec(KEY), FrameCodec(b"another").pack(FRAME, RANGES))


def make_write(payload: int, *, total: int = 0) -> Frame:
    return Frame(
        kind=Kind.WRITE, imm=0, write=0, total_bytes=total or payload, payload_bytes=payload
    )


# Sizes whose sum would wrap around to 8 in 64 bits.
WRAPPING = [(0, 2**62), (0, 2**62), (0, 2**62), (0, 2**62 - 1), (0, 9)]


@pytest.mark.parametrize(
    ("frame", "ranges", "what"),
    [
        pytest.param(make_write(8), [], "add up", id="no-ranges"),
        pytest.param(make_write(8), [(0, 9)], "add up", id="too-long"),
        pytest.param(make_write(8), [(0, 8), (8, 0)], "empty", id="empty-range"),
        pytest.param(make_write(8), [(-1, 8)], "add up", id="negative-offset"),
        pytest.param(make_write(8), [(0, 16), (8, -8)], "add up", id="negative-size"),
        pytest.param(make_write(8), WRAPPING, "add up", id="wrapping"),
        pytest.param(make_write(8, total=7), [(0, 8)], "contradict", id="over-its-total"),
        pytest.param(
            Frame(kind=Kind.FENCE, imm=0, write=0, total_bytes=8), [], "contradict", id="fence"
        ),
        pytest.param(
            Frame(kind=Kind.FENCE, imm=0, write=0), [(0, 8)], "contradict", id="fence-with-ranges"
        ),
        pytest.param(
            make_write(MAX_PAYLOAD_BYTES + 1),
            [(0, MAX_PAYLOAD_BYTES + 1)],
            "the limits are",
            id="too-many-bytes",
        ),
        pytest.param(
            make_write(MAX_FRAGMENTS + 1),
            [(n, 1) for n in range(MAX_FRAGMENTS + 1)],
            "the limits are",
            id="too-many-ranges",
        ),
    ],
)
def test_an_authentic_frame_that_makes_no_sense_is_refused(
    frame: Frame, ranges: list[Range], what: str
) -> None:
    with pytest.raises(ProtocolError, match=what):
        unpack(FrameCodec(KEY), FrameCodec(KEY).pack(frame, ranges))


sizes = st.integers(0, MAX_PAYLOAD_BYTES // 2) | st.integers(0, 3 * MAX_PAYLOAD_BYTES)


@given(st.lists(sizes, min_size=1, max_size=6), st.integers(0, 3))
def test_pieces_carry_each_byte_once_to_where_it_belongs(num_bytes: list[int], gap: int) -> None:
    lengths = np.array(num_bytes, np.int64)
    sources = np.cumsum(lengths + gap) - lengths
    targets = 5 * sources[::-1] + 1
    pieces = cut_pieces(Fragments(sources, targets, lengths))
    moved = []
    for piece in pieces:
        assert piece.total_bytes <= MAX_PAYLOAD_BYTES
        columns = (piece.source_offsets, piece.target_offsets, piece.num_bytes)
        moved += zip(*(column.tolist() for column in columns), strict=True)
    assert sum(size for _, _, size in moved) == sum(num_bytes)
    begin = -1
    for source, target, size in sorted(one for one in moved if one[2]):
        assert source >= begin  # nothing twice
        begin = source + size
        home = np.flatnonzero((sources <= source) & (source + size <= sources + lengths))[-1]
        assert target - source == targets[home] - sources[home]


def test_many_small_ranges_are_several_pieces() -> None:
    whole = fragments(*((n * 10, n * 20, n % 3) for n in range(3000)))
    pieces = cut_pieces(whole)
    assert [len(piece.num_bytes) for piece in pieces] == [MAX_FRAGMENTS, 2000 - MAX_FRAGMENTS]
    assert sum(piece.total_bytes for piece in pieces) == whole.total_bytes


def test_a_write_of_no_bytes_is_one_piece() -> None:
    (piece,) = cut_pieces(fragments(*((n, n, 0) for n in range(2000))))
    assert join_ranges(piece.target_offsets.tolist(), piece.num_bytes.tolist()) == []


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4))))
def test_joined_ranges_hold_the_same_bytes_in_the_same_order(ranges: list[Range]) -> None:
    joined = join_ranges([offset for offset, _ in ranges], [size for _, size in ranges])

    def places(of: list[Range]) -> list[int]:
        return [place for offset, size in of for place in range(offset, offset + size)]

    assert places(joined) == places(ranges)
    assert all(size for _, size in joined)
    assert all(a + n != b for (a, n), (b, _) in zip(joined, joined[1:], strict=False))
