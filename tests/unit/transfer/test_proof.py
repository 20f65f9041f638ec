"""A proof is worth what it refuses: each kind of wrong plan, made by hand, must be caught."""

from collections.abc import Callable

import numpy as np
import pytest

from headrace.core.errors import TransferError
from headrace.core.transport import Fragments
from headrace.transfer.plan import TransferPlan, plan_transfer
from headrace.transfer.proof import prove_plan
from tests.support.transfer_layouts import split_layouts


class BrokenPlan(TransferPlan):
    """A plan whose fragments are changed on their way out."""

    def __init__(self, good: TransferPlan, change: Callable[[Fragments], Fragments]) -> None:
        super().__init__(
            sources=good.sources,
            targets=good.targets,
            source=good.source,
            target=good.target,
            start=good.start,
            stop=good.stop,
            owners=good.owners,
            spans=good.spans,
        )
        self.change = change

    def pattern(self, source_rank: int, target_rank: int) -> Fragments:
        good = super().pattern(source_rank, target_rank)
        return self.change(good) if source_rank == 1 else good


def make_plan() -> TransferPlan:
    return plan_transfer(
        sources=split_layouts(2),
        targets=split_layouts(1, block_size=32),
        source_blocks=[5, 2, 8, 3],
        target_blocks=[1, 7],
        start=3,
        stop=57,
        seed=0,
    )


def edited(fragments: Fragments, *, field: str, index: int, by: int) -> Fragments:
    arrays = {name: getattr(fragments, name).copy() for name in Fragments.__struct_fields__}
    arrays[field][index] += by
    return Fragments(**arrays)


@pytest.mark.parametrize(
    ("field", "by"),
    [
        ("source_offsets", 1),  # the neighbouring token
        ("source_offsets", 16),  # the neighbouring block
        ("source_offsets", 2 * 16 * 16),  # V instead of K, or out of the layer
        ("target_offsets", 1),
        ("target_offsets", -32),
        ("num_bytes", 1),
        ("num_bytes", -1),
        ("num_bytes", -16),
    ],
)
@pytest.mark.parametrize("index", [0, 5, -1])
def test_one_wrong_number_is_caught(field: str, by: int, index: int) -> None:
    plan = BrokenPlan(make_plan(), lambda good: edited(good, field=field, index=index, by=by))
    with pytest.raises(TransferError, match="plan"):
        prove_plan(plan)


def test_a_lost_fragment_is_caught() -> None:
    plan = BrokenPlan(
        make_plan(),
        lambda good: Fragments(
            good.source_offsets[1:], good.target_offsets[1:], good.num_bytes[1:]
        ),
    )
    with pytest.raises(TransferError, match="in other places"):
        prove_plan(plan)


def test_a_fragment_sent_twice_is_caught() -> None:
    plan = BrokenPlan(
        make_plan(),
        lambda good: Fragments(
            np.append(good.source_offsets, good.source_offsets[0]),
            np.append(good.target_offsets, good.target_offsets[0]),
            np.append(good.num_bytes, good.num_bytes[0]),
        ),
    )
    with pytest.raises(TransferError, match="twice"):
        prove_plan(plan)


def test_two_fragments_that_swap_sources_are_caught() -> None:
    def swap(good: Fragments) -> Fragments:
        sources = good.source_offsets.copy()
        sources[[0, 1]] = sources[[1, 0]]
        return Fragments(sources, good.target_offsets, good.num_bytes)

    with pytest.raises(TransferError, match="plan"):
        prove_plan(BrokenPlan(make_plan(), swap))


def test_heads_exchanged_between_two_sources_are_caught() -> None:
    good = make_plan()
    owners = {(0, 0): good.owners[(1, 0)], (1, 0): good.owners[(0, 0)]}
    plan = BrokenPlan(good, lambda fragments: fragments)
    plan.owners = owners
    with pytest.raises(TransferError, match="reads token slot"):
        prove_plan(plan)


@pytest.mark.parametrize("field", ["source_offsets", "target_offsets", "num_bytes"])
def test_a_layer_in_the_wrong_place_is_caught(field: str) -> None:
    plan = make_plan()
    good = plan.all_layers(1, 0)
    arrays = {name: getattr(good, name).copy() for name in Fragments.__struct_fields__}
    arrays[field][1, 3] += 16
    plan._layers[1, 0] = Fragments(**arrays)
    with pytest.raises(TransferError, match="plan (places the layers|has fragments)"):
        prove_plan(plan)


def test_the_plan_as_it_was_made_is_proved() -> None:
    prove_plan(make_plan())
