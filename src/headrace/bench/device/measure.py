"""Measuring one case: every kernel that runs there, on the same inputs, in turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from headrace.bench.device.case import REFERENCE, Baseline, Case, FamilyCases, Inputs
from headrace.bench.device.ceilings import Ceilings
from headrace.bench.device.machine import DeviceMachine
from headrace.bench.device.row import Measured, Setting, make_rows
from headrace.bench.device.timing import (
    Call,
    Replay,
    Timer,
    fits_cache,
    num_calls,
    num_sets,
    time_interleaved,
)
from headrace.bench.rows import Row
from headrace.kernels.catalogue import Site, Variant, choose

log = logging.getLogger(__name__)

# Launches from Python take less than this, so that what takes longer does so on the device.
SLOW_CALL_US = 300.0

Prepare = Callable[[Inputs], Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all cases of a run share.

    Attributes:
        name: Of the bench, for the rows.
        device: Where inputs are made.
        site: Of the device; each case brings its own sizes and dtype.
        timer: Of the device.
        ceilings: Measured in this run.
        machine: Where.
        num_replays: Of each recording, at most.
    """

    name: str
    device: str
    site: Site
    timer: Timer
    ceilings: Ceilings
    machine: DeviceMachine
    num_replays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What came of one case.

    Attributes:
        case: Its full name.
        rows: One for each kernel that ran.
        declined: Kernel -> why it does not run there.
        failed: Kernel -> what it raised. Such a kernel has no row; the others have theirs.
    """

    case: str
    rows: Sequence[Row]
    declined: Mapping[str, str]
    failed: Mapping[str, str]


@torch.inference_mode()
def measure_case(cases: FamilyCases, case: Case, bench: Bench) -> CaseResult:
    """Time every variant and baseline of one case.

    A kernel that raises, when it is imported, compiled, run or captured, is a finding of its own:
    a bench of a hundred cases must not end at the first.
    """
    name = f"{cases.family.name}/{case.name}"
    site = replace(bench.site, sizes=case.sizes, dtype=case.dtype, kv_dtype="")
    runnable, declined = find_kernels(cases, site)
    too_large = case.decline_reference()
    if too_large is not None and runnable.pop(REFERENCE, None) is not None:
        declined[REFERENCE] = too_large
    sets = num_sets(case.num_bytes, most=case.max_sets)
    try:
        inputs = case.inputs(bench.device, count=sets)
    except torch.OutOfMemoryError as error:
        failed = {"inputs": _reason(error)}
        return CaseResult(case=name, rows=(), declined=declined, failed=failed)
    num_bytes = sum(_bytes(each, case) for each in inputs) / sets
    setting = Setting(
        bench=bench.name,
        case=name,
        chosen=choose(cases.family, site).variant.name,
        num_bytes=num_bytes,
        num_flops=case.num_flops,
        num_sets=sets,
        may_be_cached=fits_cache(case.num_bytes, sets),
        ceilings=bench.ceilings,
        baselines=cases.compared_with,
    )
    recorded, failed = _record(
        runnable, inputs, setting=setting, timer=bench.timer, uncaptured=cases.uncaptured
    )
    timings = time_interleaved(recorded, bench.timer, num_replays=bench.num_replays)
    measured = [
        Measured(kernel=kernel, timing=timing, captured=kernel not in cases.uncaptured)
        for kernel, timing in timings.items()
    ]
    rows = make_rows(setting, measured, bench.machine)
    return CaseResult(case=name, rows=rows, declined=declined, failed=failed)


def find_kernels(cases: FamilyCases, site: Site) -> tuple[dict[str, Prepare], dict[str, str]]:
    """Return what runs at a site, variants first, and why the rest does not.

    Returns:
        Kernel -> what makes a call of inputs; kernel -> reason.
    """
    runnable: dict[str, Prepare] = {}
    declined: dict[str, str] = {}
    kernels: tuple[Variant[Any] | Baseline, ...] = (*cases.family.variants, *cases.baselines)
    for kernel in kernels:
        reason = kernel.decline(site)
        if reason is not None:
            declined[kernel.name] = reason
        elif isinstance(kernel, Baseline):
            runnable[kernel.name] = kernel.prepare
        else:
            runnable[kernel.name] = partial(_prepare, kernel)
    return runnable, declined


def measure(
    families: Sequence[FamilyCases], bench: Bench, *, matching: str = ""
) -> Iterator[CaseResult]:
    """Yield the result of every case whose full name contains ``matching``."""
    for cases in families:
        for case in cases.cases:
            if matching in f"{cases.family.name}/{case.name}":
                yield measure_case(cases, case, bench)
                bench.timer.release()


def _record(
    runnable: Mapping[str, Prepare],
    inputs: Sequence[Inputs],
    *,
    setting: Setting,
    timer: Timer,
    uncaptured: frozenset[str],
) -> tuple[dict[str, tuple[Replay, int]], dict[str, str]]:
    """Record every kernel over all inputs; what raises is set aside with its reason."""
    expected_us = setting.ceilings.floor_us(num_bytes=setting.num_bytes, flops=setting.num_flops)
    recorded: dict[str, tuple[Replay, int]] = {}
    failed: dict[str, str] = {}
    for kernel, prepare in runnable.items():
        try:
            calls = [prepare(each) for each in inputs]
            once = timer.record(calls, captures=False), len(calls)
            recorded[kernel] = (
                once
                if kernel in uncaptured
                else _capture(calls, timer, once=once, expected_us=expected_us)
            )
        except Exception as error:
            log.debug("%s %s", setting.case, kernel, exc_info=True)
            failed[kernel] = _reason(error)
    return recorded, failed


def _capture(
    calls: list[Call], timer: Timer, *, once: tuple[Replay, int], expected_us: float
) -> tuple[Replay, int]:
    """Record as many rotations as make a graph long enough, by what one rotation took.

    A fast kernel's rotation takes its launches' time, so its floor is the better guess.
    """
    took_us = timer.time_us([once[0]])[0] / len(calls)
    count = num_calls(len(calls), took_us if took_us > SLOW_CALL_US else expected_us)
    return timer.record(calls * (count // len(calls)), captures=True), count


def _prepare(variant: Variant[Any], inputs: Inputs) -> Call:
    return partial(variant.load(), *inputs.args, **inputs.kwargs)


def _bytes(inputs: Inputs, case: Case) -> float:
    return case.num_bytes if inputs.num_bytes is None else inputs.num_bytes


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
