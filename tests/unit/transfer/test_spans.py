import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.transfer.spans import BlockRun, cut_spans, join_runs

SIZES = st.sampled_from([1, 2, 4, 8, 16, 32])


def run(blocks: list[int], size: int) -> BlockRun:
    return BlockRun(blocks=np.array(blocks, np.int64), block_size=size)


@given(st.data(), SIZES, SIZES, st.integers(0, 70), st.integers(0, 70))
def test_spans_carry_each_token_once(
    data: st.DataObject, source_size: int, target_size: int, one: int, other: int
) -> None:
    start, stop = sorted((one, other))
    sides = [
        run(data.draw(st.permutations(range(-(-stop // size) + 2))), size)
        for size in (source_size, target_size)
    ]
    spans = cut_spans(*sides, start=start, stop=stop)
    moved = {
        (int(a) + i, int(b) + i)
        for a, b, n in zip(spans.source_slots, spans.target_slots, spans.num_tokens, strict=True)
        for i in range(int(n))
    }
    positions = np.arange(start, stop)
    want = set(
        zip(sides[0].slots(positions).tolist(), sides[1].slots(positions).tolist(), strict=True)
    )
    assert moved == want
    assert spans.num_tokens.sum() == stop - start
    assert (np.diff(spans.target_slots) > 0).all()


def test_part_full_ends_carry_only_their_tokens() -> None:
    spans = cut_spans(run([4, 9], 16), run([2, 7], 16), start=10, stop=19)
    assert spans.source_slots.tolist() == [74, 144]
    assert spans.target_slots.tolist() == [42, 112]
    assert spans.num_tokens.tolist() == [6, 3]


def test_pieces_count_what_was_there_before_joining() -> None:
    spans = cut_spans(run([0, 1, 2, 3], 16), run([5, 6], 32), start=0, stop=64)
    assert spans.num_pieces == 4
    assert spans.num_tokens.tolist() == [64]


def test_runs_join_only_when_both_sides_run_on() -> None:
    sources, targets, lengths = join_runs(
        np.array([0, 4, 9, 12]), np.array([10, 14, 18, 30]), np.array([4, 4, 3, 3])
    )
    assert sources.tolist() == [0, 9, 12]
    assert targets.tolist() == [10, 18, 30]
    assert lengths.tolist() == [8, 3, 3]
