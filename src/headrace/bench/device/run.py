"""A device bench from a device's name: look at it, measure its ceilings, then its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from headrace.bench.device.ceilings import measure_ceilings
from headrace.bench.device.machine import describe_machine
from headrace.bench.device.measure import Bench, CaseResult, measure
from headrace.bench.device.registry import select_families
from headrace.bench.device.timing import CudaTimer
from headrace.core.errors import ConfigError
from headrace.kernels.site import detect_site


def run_bench(
    name: str,
    families: Sequence[str],
    *,
    device: str = "cuda:0",
    matching: str = "",
    num_replays: int = 100,
) -> Iterator[CaseResult]:
    """Measure families on a CUDA device, case by case.

    Args:
        name: Of the bench, for the rows and for complaints.
        families: By name; all when empty.
        device: ``"cuda:N"``; becomes the current device.
        matching: Part of the names of the cases to measure.
        num_replays: Of each recording, at most.

    Raises:
        ConfigError: There is no such device or family, or no case matches.
    """
    selected = select_families(families)
    if not torch.cuda.is_available():
        raise ConfigError(
            f"bench {name} needs a CUDA device: torch.cuda.is_available() is False here"
        )
    if not device.startswith("cuda:"):
        raise ConfigError(f"bench {name} needs a CUDA device, such as cuda:0, got {device!r}")
    names = [f"{each.family.name}/{case.name}" for each in selected for case in each.cases]
    if not any(matching in case for case in names):
        raise ConfigError(f"--case {matching!r}: no case has this in its name, as {names[0]} has")
    site = detect_site(device, dtype="bfloat16", sizes={})
    torch.cuda.set_device(device)
    timer = CudaTimer()
    ceilings = measure_ceilings(timer, device)
    bench = Bench(
        name=name,
        device=device,
        site=site,
        timer=timer,
        ceilings=ceilings,
        # After some work, so that the clocks are those of a busy device.
        machine=describe_machine(device),
        num_replays=num_replays,
    )
    yield from measure(selected, bench, matching=matching)
