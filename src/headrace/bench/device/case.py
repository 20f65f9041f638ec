"""What a case of a device bench is: named sizes, a builder of inputs, and what it costs at least.

Tests call the builders at tiny sizes on a CPU; nothing here or in the modules of cases needs a
device to be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.bench.device.draws import Draws
from headrace.bench.device.timing import Call
from headrace.kernels.catalogue import Family, Site

REFERENCE = "reference"
DEFAULT_MAX_SETS = 32
# Temporaries of a plain reference: what is left beside models and pools on a shared device.
MAX_REFERENCE_BYTES = 20e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Arguments of one call, on the device.

    Attributes:
        args: By position.
        kwargs: By name.
        num_bytes: What just these inputs make any implementation move; None where it is the
            case's own figure.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One named call of a family.

    Attributes:
        name: Parts joined by slashes, without the family's name.
        sizes: What its ``Site`` says.
        num_bytes: That any implementation must move; an expected value where inputs decide.
        num_flops: That any implementation must compute in products.
        build: Makes inputs from draws: as different as calls in a model are.
        dtype: Of rows and weights.
        max_sets: Input sets at most. What a step has just written comes out of the L2 cache in a
            model too; weights do not, and want as many sets as it takes.
        reference_bytes: Estimate of the reference's temporaries at their peak; 0 where they are
            about as small as its arguments.
    """

    name: str
    sizes: Mapping[str, int]
    num_bytes: float
    num_flops: float
    build: Callable[[Draws], Inputs]
    dtype: str = "bfloat16"
    max_sets: int = DEFAULT_MAX_SETS
    reference_bytes: float = 0.0

    def inputs(self, device: torch.device | str, *, count: int) -> list[Inputs]:
        """Build ``count`` sets of inputs, each from a seed of its own."""
        return [self.build(Draws(device, seed=seed)) for seed in range(count)]

    def decline_reference(self) -> str | None:
        """Say that the reference would need too much memory; None when it would not."""
        if self.reference_bytes <= MAX_REFERENCE_BYTES:
            return None
        return (
            f"needs {self.reference_bytes / 1e9:.0f} GB of temporaries, more than the "
            f"{MAX_REFERENCE_BYTES / 1e9:.0f} GB that a reference may take"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a user would run instead of the family.

    Attributes:
        name: For the rows.
        decline: Why it cannot run at a site, in words; None when it can.
        prepare: Makes a call of inputs; what a real user would have at hand, such as offsets, is
            made here and not timed.
    """

    name: str
    decline: Callable[[Site], str | None]
    prepare: Callable[[Inputs], Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCases:
    """Everything that is measured of one family.

    Attributes:
        family: Its variants are called with the inputs as they are.
        cases: In the order in which they are measured.
        baselines: Besides the family's reference.
        compared_with: Names of baselines, the main one first; of those that run.
        uncaptured: Variants and baselines that sync with the host, and so fit no CUDA graph.
    """

    family: Family[Any]
    cases: tuple[Case, ...]
    baselines: tuple[Baseline, ...] = ()
    compared_with: tuple[str, ...] = (REFERENCE,)
    uncaptured: frozenset[str] = frozenset()
