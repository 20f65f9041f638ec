import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import IllegalPlanError
from headrace.core.layouts import CacheLayout, KvSchema
from headrace.transfer.owners import expected_bytes, expected_bytes_by_source
from headrace.transfer.plan import TransferPlan, plan_transfer
from tests.support.transfer_layouts import TruthfulKv, make_schema, split_layouts

BLOCK_SIZES = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def block_tables(draw: st.DrawFn, *, num_blocks: int, need: int) -> list[int]:
    """Draw distinct ids: running on, running back, or anything."""
    first = draw(st.integers(0, num_blocks - need))
    run = list(range(first, first + need))
    kind = draw(st.sampled_from(["forward", "backward", "scattered"]))
    if kind == "scattered":
        return draw(st.permutations(range(num_blocks)))[:need]
    return run if kind == "forward" else run[::-1]


@st.composite
def plans(draw: st.DrawFn) -> TransferPlan:
    """Draw any legal plan of a small model."""
    heads = draw(st.integers(1, 6))
    schemas = [
        make_schema(heads, draw(st.integers(1, 3)), draw(st.sampled_from(["float32", "float16"])))
        for _ in range(draw(st.integers(1, 3)))
    ]
    schemas = [KvSchema(num_kv_heads=heads, head_dim=s.head_dim, dtype=s.dtype) for s in schemas]
    num_tokens = draw(st.integers(0, 40))
    start = draw(st.integers(0, num_tokens))
    sides = []
    for most_ranks in (8, 4):
        size = draw(BLOCK_SIZES)
        need = -(-num_tokens // size)
        pool = need + draw(st.integers(1, 3))
        layouts = split_layouts(
            draw(st.integers(1, most_ranks)), schemas=schemas, num_blocks=pool, block_size=size
        )
        sides.append((layouts, draw(block_tables(num_blocks=pool, need=need))))
    return plan_transfer(
        sources=sides[0][0],
        targets=sides[1][0],
        source_blocks=sides[0][1],
        target_blocks=sides[1][1],
        start=start,
        stop=num_tokens,
        seed=draw(st.integers(0, 1 << 40)),
    )


def run_plan(plan: TransferPlan, truth: TruthfulKv) -> None:
    """Copy by the plan, byte counts kept, and compare each destination with the truth."""
    positions = range(plan.start, plan.stop)
    sources = [np.zeros(layout.num_bytes, np.uint8) for layout in plan.sources]
    for region, layout in zip(sources, plan.sources, strict=True):
        truth.fill(region, layout, plan.source.blocks.tolist(), positions)
    for rank, layout in enumerate(plan.targets):
        came = np.zeros(layout.num_bytes, np.uint8)
        times = np.zeros(layout.num_bytes, np.int64)
        for source, region in enumerate(sources):
            for layer in range(plan.num_layers):
                fragments = plan.for_rank(source, rank, layer)
                for a, b, n in zip(
                    fragments.source_offsets,
                    fragments.target_offsets,
                    fragments.num_bytes,
                    strict=True,
                ):
                    came[b : b + n] = region[a : a + n]
                    times[b : b + n] += 1
        want = np.zeros(layout.num_bytes, np.uint8)
        truth.fill(want, layout, plan.target.blocks.tolist(), positions)
        np.testing.assert_array_equal(came, want)
        # Bytes of the truth are never zero, so ``want`` also says where a write belongs.
        np.testing.assert_array_equal(times, want != 0)
        assert times.sum() == expected_bytes(layout, start=plan.start, stop=plan.stop)


@given(plans())
def test_every_byte_arrives_once_and_no_other_byte_is_touched(plan: TransferPlan) -> None:
    plan.prove()
    run_plan(plan, TruthfulKv(plan.targets[0].layers, plan.stop))


@given(plans())
def test_no_two_fragments_of_a_layer_could_be_one(plan: TransferPlan) -> None:
    for source, target in plan.owners:
        for layer in range(plan.num_layers):
            one = plan.for_rank(source, target, layer)
            order = np.argsort(one.target_offsets)
            source_ends = (one.source_offsets + one.num_bytes)[order]
            target_ends = (one.target_offsets + one.num_bytes)[order]
            runs_on = (one.source_offsets[order][1:] == source_ends[:-1]) & (
                one.target_offsets[order][1:] == target_ends[:-1]
            )
            assert not runs_on.any()


@given(plans())
def test_what_each_source_owes_is_known_without_the_plan(plan: TransferPlan) -> None:
    alone = plan_transfer(
        sources=plan.sources,
        targets=plan.targets[:1],
        source_blocks=plan.source.blocks,
        target_blocks=plan.target.blocks,
        start=plan.start,
        stop=plan.stop,
        seed=7,
    )
    owed = expected_bytes_by_source(
        plan.sources, plan.targets[0], start=plan.start, stop=plan.stop, seed=7
    )
    sent = {
        rank: sum(alone.for_rank(rank, 0, layer).total_bytes for layer in range(plan.num_layers))
        for rank in range(len(plan.sources))
    }
    assert sent == owed


def plan_two(source: CacheLayout, target: CacheLayout, **changes: object) -> TransferPlan:
    arguments = {
        "sources": [source],
        "targets": [target],
        "source_blocks": [0, 1],
        "target_blocks": [2, 3],
        "start": 0,
        "stop": 20,
    }
    return plan_transfer(**{**arguments, **changes})  # type: ignore[arg-type]


def test_replicated_heads_cover_the_destination_once() -> None:
    # Four heads on eight ranks: each slice of 65,536 bytes is held twice, the destination
    # takes 262,144 bytes, and nothing is sent twice.
    schemas = [make_schema(4, 128, "bfloat16")]
    sources = split_layouts(8, schemas=schemas, num_blocks=2, block_size=128)
    (target,) = split_layouts(1, schemas=schemas, num_blocks=4, block_size=128)
    plan = plan_transfer(
        sources=sources,
        targets=[target],
        source_blocks=[1],
        target_blocks=[3],
        start=0,
        stop=128,
        seed=11,
    ).prove()
    sent = [plan.for_rank(rank, 0, 0).total_bytes for rank in range(8)]
    assert sorted(sent) == [0] * 4 + [65_536] * 4
    assert sum(sent) == 262_144 == expected_bytes(target, start=0, stop=128)
    run_plan(plan, TruthfulKv(schemas, 128))


@pytest.mark.parametrize(("start", "stop"), [(0, 128), (0, 81), (37, 81), (64, 65)])
@pytest.mark.parametrize(("source", "target"), [(16, 64), (64, 16)])
def test_blocks_of_other_sizes_are_remapped_layer_by_layer(
    source: int, target: int, start: int, stop: int
) -> None:
    # Layers of unequal sizes: nothing may be computed from the first one.
    schemas = [make_schema(4, dim, "bfloat16") for dim in (8, 2, 6)]
    sides = []
    for size, ranks in ((source, 2), (target, 1)):
        need = 128 // size
        layouts = split_layouts(ranks, schemas=schemas, num_blocks=need + 1, block_size=size)
        sides.append((layouts, list(range(need, 0, -1))))
    plan = plan_transfer(
        sources=sides[0][0],
        targets=sides[1][0],
        source_blocks=sides[0][1],
        target_blocks=sides[1][1],
        start=start,
        stop=stop,
        seed=5,
    ).prove()
    run_plan(plan, TruthfulKv(schemas, stop))


@pytest.mark.parametrize("seed", range(3))
def test_block_ids_that_run_on_become_one_write_per_head(seed: int) -> None:
    (source,) = split_layouts(1, num_blocks=9)
    (target,) = split_layouts(1, num_blocks=12)
    plan = plan_two(
        source, target, source_blocks=[3, 4, 5], target_blocks=[7, 8, 9], stop=47, seed=seed
    )
    fragments = plan.for_rank(0, 0, 1)
    assert fragments.num_bytes.tolist() == [47 * 16] * 8


def test_blocks_that_run_backwards_on_both_sides_still_merge() -> None:
    (source,) = split_layouts(1, num_blocks=9)
    plan = plan_two(source, source, source_blocks=[5, 4, 3], target_blocks=[8, 7, 6], stop=48)
    assert len(plan.for_rank(0, 0, 0).num_bytes) == 8


def test_a_whole_pool_is_one_write_per_layer() -> None:
    (source,) = split_layouts(1, num_blocks=2)
    plan = plan_two(source, source, source_blocks=[0, 1], target_blocks=[0, 1], stop=32)
    assert plan.for_rank(0, 0, 1).num_bytes.tolist() == [source.layer_bytes(1)]


def test_an_empty_range_writes_nothing() -> None:
    (source,) = split_layouts(1)
    plan = plan_two(source, source, start=20, stop=20, target_blocks=[]).prove()
    assert not len(plan.for_rank(0, 0, 0).num_bytes)


def test_a_plan_is_the_same_wherever_it_is_made() -> None:
    sources, targets = split_layouts(8), split_layouts(2)
    first, second = (
        plan_transfer(
            sources=sources,
            targets=targets,
            source_blocks=[3, 1],
            target_blocks=[0, 7],
            start=5,
            stop=30,
            seed=99,
        )
        for _ in range(2)
    )
    assert first.owners == second.owners
    for pair in first.owners:
        np.testing.assert_array_equal(
            first.for_rank(*pair, 1).source_offsets, second.for_rank(*pair, 1).source_offsets
        )


def test_layers_lie_where_the_layout_puts_them() -> None:
    schemas = [make_schema(4, 8), make_schema(4, 6, "float32"), make_schema(4, 6, "float32")]
    sources = split_layouts(2, schemas=schemas)
    plan = plan_two(sources[0], sources[0], sources=sources, targets=sources)
    for rank, layout in enumerate(sources):
        first = plan.all_layers(rank, rank).source_offsets.min(axis=1)
        assert first.tolist() == [layout.layer_offset(i) for i in range(3)]


def test_a_negative_range_is_refused() -> None:
    (layout,) = split_layouts(1)
    with pytest.raises(IllegalPlanError, match=r"\[5, 3\)"):
        plan_two(layout, layout, start=5, stop=3)
