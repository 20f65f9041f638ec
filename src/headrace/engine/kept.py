"""What a rank keeps while its replica re-forms: the weights, which take minutes to load."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.comm.current import CurrentGroup
from headrace.core.launch import LaunchSpec
from headrace.engine.load import Loaded


@dataclass(slots=True)
class Kept:
    """Made once per process; everything else belongs to one generation.

    Attributes:
        group: What the loaded model calls for its sums, whatever the generation.
        loaded: The model; None until it is loaded.
    """

    group: CurrentGroup
    loaded: Loaded | None = None

    @staticmethod
    def of(spec: LaunchSpec) -> Kept:
        """Return what a process that begins as ``spec`` will keep."""
        return Kept(CurrentGroup(rank=spec.rank, size=spec.sharding.num_ranks))
