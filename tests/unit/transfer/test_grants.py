import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import TransferError
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import Grant
from headrace.transfer.grants import (
    MAX_PARTIAL_WRITES,
    Grants,
    Visit,
    Writer,
    granted_ranges,
)
from headrace.transfer.tcp_frames import Frame, Kind, Range, Refusal
from tests.support.transfer_layouts import make_schema, split_layouts
from tests.support.transfer_world import PATIENCE_S

WRITER = Writer("prefill0.2", 2, 7)
(LAYOUT,) = split_layouts(1, schemas=[make_schema(2, 4), make_schema(2, 8)], num_blocks=6)
REGION = RegionDescriptor(
    transport="tcp",
    name="tcp://h:1/0",
    doorbell="tcp://h:1",
    rank=0,
    generation=4,
    num_bytes=LAYOUT.num_bytes,
    layout=LAYOUT,
)


def make_grant(block_ids: Sequence[int], start: int, stop: int) -> Grant:
    return Grant(
        region=REGION,
        block_ids=block_ids,
        start=start,
        stop=stop,
        replica="prefill0",
        writers={1: 9, 2: 7},
    )


def make_frame(ranges: Sequence[Range], *, imm: int = 0, write: int = 0, total: int = 0) -> Frame:
    payload = sum(size for _, size in ranges)
    return Frame(
        kind=Kind.WRITE,
        imm=imm,
        write=write,
        total_bytes=total or payload,
        payload_bytes=payload,
        num_fragments=len(ranges),
    )


class Lab:
    """A region of which session 0 was granted tokens 20 to 40."""

    def __init__(self) -> None:
        self.memory = bytearray(LAYOUT.num_bytes)
        self.grants = Grants()
        self.num_cuts = 0
        self.add(0, make_grant([3, 4, 1], 20, 40))
        # Slot 4 of block 4, head 0 of K in layer 0: tokens of 8 bytes.
        self.home = LAYOUT.atom_offset(0, 0, 0, 4) + 4 * 8

    def add(self, imm: int, grant: Grant) -> None:
        self.grants.add(imm, grant, number=0, buffer=memoryview(self.memory))

    def enter(
        self,
        ranges: Sequence[Range],
        *,
        imm: int = 0,
        write: int = 0,
        total: int = 0,
        writer: Writer = WRITER,
    ) -> Visit | Refusal:
        frame = make_frame(ranges, imm=imm, write=write, total=total)
        return self.grants.enter(frame, list(ranges), writer=writer, cut=self.cut)

    def cut(self) -> None:
        self.num_cuts += 1


@pytest.fixture
def lab() -> Lab:
    return Lab()


def mask_of(grant: Grant) -> np.ndarray:
    """The slow and obvious counterpart: one flag per byte, token by token."""
    mask = np.zeros(LAYOUT.num_bytes, bool)
    for token in range(grant.start, grant.stop):
        block, slot = divmod(token, LAYOUT.block_size)
        for layer, schema in enumerate(LAYOUT.layers):
            for kv in (0, 1):
                for head in LAYOUT.heads:
                    atom = LAYOUT.atom_offset(layer, kv, head, grant.block_ids[block])
                    begin = atom + slot * schema.token_bytes
                    mask[begin : begin + schema.token_bytes] = True
    return mask


grants = st.permutations(range(6)).flatmap(
    lambda blocks: st.tuples(st.just(blocks), st.integers(0, 95), st.integers(1, 96))
)


@given(grants)
def test_granted_ranges_are_the_bytes_of_the_granted_tokens(
    case: tuple[list[int], int, int],
) -> None:
    blocks, start, length = case
    grant = make_grant(blocks, start, min(96, start + length))
    mask = np.zeros(LAYOUT.num_bytes, bool)
    starts, sizes = granted_ranges(grant)
    for offset, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        assert not mask[offset : offset + size].any()
        mask[offset : offset + size] = True
    np.testing.assert_array_equal(mask, mask_of(grant))
    assert (starts[1:] > starts[:-1] + sizes[:-1]).all()  # ascending, and none could be joined


@given(
    grants,
    st.lists(
        st.tuples(st.integers(0, LAYOUT.num_bytes + 64), st.integers(1, 200)),
        min_size=1,
        max_size=4,
    ),
)
def test_a_frame_enters_exactly_when_all_its_bytes_are_granted(
    case: tuple[list[int], int, int], ranges: list[Range]
) -> None:
    blocks, start, length = case
    grant = make_grant(blocks, start, min(96, start + length))
    lab = Lab()
    lab.add(1, grant)
    mask = mask_of(grant)
    inside = all(
        offset + size <= LAYOUT.num_bytes and mask[offset : offset + size].all()
        for offset, size in ranges
    )
    entered = lab.enter(ranges, imm=1)
    if not inside:
        assert entered is Refusal.OUTSIDE
        return
    assert isinstance(entered, Visit)
    assert [len(view) for view in entered.views] == [size for _, size in ranges]
    for view in entered.views:
        view[:] = bytes([1]) * len(view)
    touched = np.frombuffer(lab.memory, np.uint8).astype(bool)
    assert not (touched & ~mask).any()


def test_a_write_is_whole_when_its_last_part_leaves(lab: Lab) -> None:
    parts = [lab.enter([(lab.home + n, 8)], total=24) for n in (0, 8, 16)]
    whole = [lab.grants.leave(part, is_whole=True) for part in parts if isinstance(part, Visit)]
    assert whole == [False, False, True]


def test_writes_and_writers_are_counted_apart(lab: Lab) -> None:
    other = Writer("prefill0.1", 1, 9)
    for writer, write in ((WRITER, 0), (WRITER, 1), (other, 0)):
        visit = lab.enter([(lab.home, 8)], write=write, writer=writer, total=16)
        assert isinstance(visit, Visit)
        assert not lab.grants.leave(visit, is_whole=True)


def test_a_part_that_was_cut_off_does_not_count(lab: Lab) -> None:
    visit = lab.enter([(lab.home, 8)])
    assert isinstance(visit, Visit)
    assert not lab.grants.leave(visit, is_whole=False)


@pytest.mark.parametrize(
    "writer",
    [
        Writer("prefill0.2", 2, 8),
        Writer("prefill0.1", 2, 7),
        Writer("prefill1.2", 2, 7),
        Writer("prefill0.3", 3, 7),
    ],
    ids=["generation", "name", "replica", "rank"],
)
def test_a_writer_that_was_not_granted_is_a_stranger(lab: Lab, writer: Writer) -> None:
    assert lab.enter([(lab.home, 8)], writer=writer) is Refusal.STRANGER


def test_what_was_never_granted_is_refused(lab: Lab) -> None:
    assert lab.enter([(lab.home, 8)], imm=5) is Refusal.NOT_GRANTED
    frame = Frame(kind=Kind.WRITE, imm=0, write=0, region=1, total_bytes=8, payload_bytes=8)
    entered = lab.grants.enter(frame, [(lab.home, 8)], writer=WRITER, cut=lab.cut)
    assert entered is Refusal.NOT_GRANTED


def test_a_write_of_more_than_it_said_is_refused(lab: Lab) -> None:
    first = lab.enter([(lab.home, 8)], total=12)
    assert isinstance(first, Visit)
    lab.grants.leave(first, is_whole=True)
    assert lab.enter([(lab.home, 8)], total=12) is Refusal.OVERFULL


def test_writes_that_are_never_finished_are_bounded(lab: Lab) -> None:
    for write in range(MAX_PARTIAL_WRITES):
        visit = lab.enter([(lab.home, 8)], write=write, total=16)
        assert isinstance(visit, Visit)
        lab.grants.leave(visit, is_whole=True)
    assert lab.enter([(lab.home, 8)], write=MAX_PARTIAL_WRITES) is Refusal.OVERFULL
    assert isinstance(lab.enter([(lab.home, 8)], write=0, total=16), Visit)


def test_a_grant_taken_back_is_no_grant(lab: Lab) -> None:
    lab.grants.revoke(0)
    lab.grants.revoke(0)
    assert len(lab.grants) == 0
    assert lab.enter([(lab.home, 8)]) is Refusal.NOT_GRANTED


def test_granting_twice_is_a_mistake(lab: Lab) -> None:
    with pytest.raises(TransferError, match="a grant already"):
        lab.add(0, make_grant([0], 0, 4))


@pytest.mark.parametrize("how", ["revoke", "revoke_region"])
def test_taking_a_grant_back_cuts_its_visitors_off_and_waits_for_them(lab: Lab, how: str) -> None:
    visit = lab.enter([(lab.home, 8)])
    assert isinstance(visit, Visit)
    is_cut, is_back = threading.Event(), threading.Event()
    visit.cut = is_cut.set

    def take_back() -> None:
        getattr(lab.grants, how)(0)
        is_back.set()

    thread = threading.Thread(target=take_back)
    thread.start()
    assert is_cut.wait(PATIENCE_S)
    assert not is_back.is_set()
    assert not lab.grants.leave(visit, is_whole=True)  # the bytes came too late to count
    assert is_back.wait(PATIENCE_S)
    thread.join()


def test_other_regions_keep_their_grants(lab: Lab) -> None:
    lab.grants.revoke_region(1)
    assert isinstance(lab.enter([(lab.home, 8)]), Visit)


def test_a_visitor_that_never_leaves_is_an_error(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.transfer.grants._LEAVE_TIMEOUT_S", 0.01)
    assert isinstance(lab.enter([(lab.home, 8)]), Visit)
    with pytest.raises(TransferError, match="did not leave"):
        lab.grants.revoke(0)
    assert lab.num_cuts == 1
