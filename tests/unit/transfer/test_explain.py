import pytest

from headrace.core.errors import TransferError
from headrace.transfer.explain import explain_plan, format_heads, summarize_plan
from headrace.transfer.owners import expected_bytes
from headrace.transfer.plan import TransferPlan, plan_transfer
from tests.support.transfer_layouts import split_layouts


def make_plan(stop: int = 70) -> TransferPlan:
    return plan_transfer(
        sources=split_layouts(8),
        targets=split_layouts(2, block_size=32),
        source_blocks=[5, 6, 7, 2, 9],
        target_blocks=[3, 4, 1],
        start=10,
        stop=stop,
        seed=2,
    )


def test_sums_are_those_of_the_fragments() -> None:
    plan = make_plan()
    pairs = summarize_plan(plan)
    want = sum(expected_bytes(target, start=10, stop=70) for target in plan.targets)
    assert sum(pair.num_bytes for pair in pairs) == want
    for pair in pairs:
        sent = [plan.for_rank(pair.source, pair.target, layer) for layer in range(2)]
        assert pair.num_writes == sum(len(one.num_bytes) for one in sent)
        assert pair.num_bytes == sum(one.total_bytes for one in sent)


def test_atoms_are_counted_before_merging() -> None:
    # Positions 10 to 70 are cut at 16, 32, 48 and 64: five pieces, K and V, two layers. Blocks
    # 5, 6, 7 run on and so do 3, 4 on the other side: three pieces become one.
    sending = [pair for pair in summarize_plan(make_plan()) if pair.heads]
    assert {(pair.num_atoms, pair.num_writes) for pair in sending} == {(5 * 2 * 2, 3 * 2 * 2)}


def test_every_replica_that_stays_silent_is_named() -> None:
    pairs = summarize_plan(make_plan())
    assert len(pairs) == 8
    silent = [pair for pair in pairs if not pair.heads]
    assert len(silent) == 4
    assert {pair.skipped_bytes for pair in silent} == {60 * 2 * 2 * 16}


def test_the_table_says_bytes_writes_and_link() -> None:
    text = explain_plan(make_plan(), link="shm")
    total = next(line for line in text.splitlines() if line.strip().startswith("all"))
    assert total.split() == ["all", "80", "48", "15,360", "15,360", "shm"]
    assert "tokens [10, 70)" in text
    assert "blocks of 16" in text
    assert "blocks of 32" in text


def test_an_empty_plan_is_explained_too() -> None:
    assert "nothing to send" in explain_plan(make_plan(stop=10), link="shm")


def test_a_plan_that_is_wrong_is_never_explained_as_right() -> None:
    plan = make_plan()
    plan.pattern(1, 0).target_offsets[0] += 1
    with pytest.raises(TransferError):
        explain_plan(plan, link="shm")


@pytest.mark.parametrize(
    ("heads", "text"), [((), "-"), ((3,), "3"), ((0, 1, 2, 5), "0-2,5"), ((0, 2, 4), "0,2,4")]
)
def test_heads_read_as_ranges(heads: tuple[int, ...], text: str) -> None:
    assert format_heads(heads) == text
