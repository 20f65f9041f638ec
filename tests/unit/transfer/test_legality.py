import pytest

from headrace.core.errors import IllegalPlanError
from headrace.core.layouts import CacheLayout
from headrace.transfer.plan import plan_transfer
from tests.support.transfer_layouts import make_schema, split_layouts


def plan(
    source: CacheLayout,
    target: CacheLayout,
    *,
    source_blocks: tuple[int, ...] = (0, 1),
    target_blocks: tuple[int, ...] = (0, 1),
) -> None:
    plan_transfer(
        sources=[source],
        targets=[target],
        source_blocks=source_blocks,
        target_blocks=target_blocks,
        start=0,
        stop=20,
    )


@pytest.mark.parametrize(
    ("schemas", "message"),
    [
        ([make_schema()] * 3, "has 3 layers, destination rank 0 has 2"),
        ([make_schema(), make_schema(dtype="float32")], "dtype float32.* has bfloat16"),
        ([make_schema(head_dim=16)] * 2, "head_dim 16.* has 8"),
        ([make_schema(heads=8)] * 2, "num_kv_heads 8.* has 4"),
    ],
)
def test_models_that_differ_are_refused_with_both_values(
    schemas: list[object], message: str
) -> None:
    (source,) = split_layouts(1, schemas=schemas)  # type: ignore[arg-type]
    (target,) = split_layouts(1)
    with pytest.raises(IllegalPlanError, match=message):
        plan(source, target)


def test_a_rank_that_differs_from_its_own_group_is_refused() -> None:
    good, other = split_layouts(2), split_layouts(2, block_size=32)
    with pytest.raises(IllegalPlanError, match=r"source rank 1 has block_size 32.*16"):
        plan_transfer(
            sources=[good[0], other[1]],
            targets=good,
            source_blocks=[0],
            target_blocks=[0],
            start=0,
            stop=4,
        )


def test_no_ranks_at_all_are_refused() -> None:
    with pytest.raises(IllegalPlanError, match="no source ranks"):
        plan_transfer(
            sources=[],
            targets=split_layouts(1),
            source_blocks=[],
            target_blocks=[],
            start=0,
            stop=0,
        )


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ((0,), "1 {side} blocks of 16 tokens hold 16 tokens: 20 need 2"),
        ((0, 16), "{side} block 16: the pool has blocks 0 to 15"),
        ((0, -1), "{side} block -1: the pool"),
        ((3, 3), "{side} block 3 is named twice"),
    ],
)
@pytest.mark.parametrize("side", ["source", "destination"])
def test_blocks_that_cannot_hold_the_range_are_refused(
    side: str, blocks: tuple[int, ...], message: str
) -> None:
    (layout,) = split_layouts(1)
    where = "source_blocks" if side == "source" else "target_blocks"
    with pytest.raises(IllegalPlanError, match=message.format(side=side)):
        plan(layout, layout, **{where: blocks})


def test_blocks_outside_the_range_may_be_anything() -> None:
    (layout,) = split_layouts(1)
    plan_transfer(
        sources=[layout],
        targets=[layout],
        source_blocks=[99, 1, 1],
        target_blocks=[-5, 2, 99],
        start=16,
        stop=32,
    ).prove()
