"""The row of one variant on one case, as every bench writes them. Torch-free.

A row of a device bench has, beside what all rows have: ``kernel``, the variant's name in the
catalogue (``variant`` is ``headrace`` for the one that the catalogue chooses there), how it was
timed, over how many input sets, and the ceilings that its floor was made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.bench.rows import Row, make_row

if TYPE_CHECKING:
    from headrace.bench.device.ceilings import Ceilings
    from headrace.bench.device.machine import DeviceMachine
    from headrace.bench.device.timing import Timing

OURS = "headrace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One variant on one case.

    Attributes:
        kernel: Name of the variant or baseline.
        timing: What it took.
        captured: Whether a CUDA graph ran it; if not, launches from Python count.
    """

    kernel: str
    timing: Timing
    captured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all rows of one case share.

    Attributes:
        bench: Name of the bench.
        case: Name of the case, parts joined by slashes.
        chosen: Kernel that the catalogue chooses there.
        num_bytes: That any implementation must move.
        num_flops: That any implementation must compute in products.
        num_sets: Input sets that calls rotate over.
        may_be_cached: Whether these are too small to be met cold: the L2 cache may hold some or
            all, so that a fraction of the memory floor may come out above one.
        ceilings: Of the device.
        baselines: Names of kernels that ours are compared with, the main one first.
    """

    bench: str
    case: str
    chosen: str
    num_bytes: float
    num_flops: float
    num_sets: int
    may_be_cached: bool = False
    ceilings: Ceilings
    baselines: Sequence[str] = field(default_factory=tuple)


def make_rows(setting: Setting, measured: Sequence[Measured], machine: DeviceMachine) -> list[Row]:
    """Return the rows of a case.

    Args:
        setting: The case.
        measured: Every kernel that ran.
        machine: Where.

    Returns:
        One row each. ``baselines`` maps a baseline's name to its p50 [us]; ``ratio`` is the main
        baseline's p50 over the row's own, so above one the row is faster. ``baseline`` names the
        main one: the first of the setting's that ran.
    """
    p50_us = {each.kernel: each.timing.p50_us for each in measured}
    baselines = {name: p50_us[name] for name in setting.baselines if name in p50_us}
    return [_make_row(setting, each, baselines, machine=machine) for each in measured]


def _make_row(
    setting: Setting, measured: Measured, baselines: Mapping[str, float], *, machine: DeviceMachine
) -> Row:
    timing = measured.timing
    floor = setting.ceilings.floor_us(num_bytes=setting.num_bytes, flops=setting.num_flops)
    others = {name: value for name, value in baselines.items() if name != measured.kernel}
    row = make_row(
        setting.bench,
        setting.case,
        OURS if measured.kernel == setting.chosen else measured.kernel,
        kernel=measured.kernel,
        p50_us=round(timing.p50_us, 3),
        p99_us=round(timing.p99_us, 3),
        bytes=round(setting.num_bytes),
        flops=round(setting.num_flops),
        floor_us=round(floor, 3),
        fraction=round(floor / timing.p50_us, 4),
        gb_s=round(setting.num_bytes / timing.p50_us / 1e3, 1),
        tflop_s=round(setting.num_flops / timing.p50_us / 1e6, 2),
        **_comparison(timing.p50_us, others),
        timing="graph" if measured.captured else "stream",
        calls=timing.num_calls,
        replays=timing.num_replays,
        sets=setting.num_sets,
        may_be_cached=setting.may_be_cached,
        ceilings=_rates(setting.ceilings),
    )
    row["machine"] = machine.name
    row["versions"] = {**row["versions"], **machine.versions}
    row["device"] = {
        "processors": machine.num_processors,
        "driver": machine.driver,
        **machine.clocks,
    }
    return row


def _rates(ceilings: Ceilings) -> dict[str, float]:
    return {
        "copy_tb_s": round(ceilings.copy_bytes_per_s / 1e12, 3),
        "read_tb_s": round(ceilings.read_bytes_per_s / 1e12, 3),
        "matmul_tflop_s": round(ceilings.flops_per_s / 1e12, 1),
    }


def _comparison(p50_us: float, others: Mapping[str, float]) -> dict[str, object]:
    """Keys that exist only where there is something to compare with."""
    if not others:
        return {}
    main = next(iter(others))
    return {
        "baselines": {name: round(value, 3) for name, value in others.items()},
        "baseline": main,
        "ratio": round(others[main] / p50_us, 3),
    }
