"""Decode steps of a whole model on one device: tokens per second beside the memory floor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from headrace.bench.device.ceilings import Ceilings
from headrace.bench.device.floors import decode_bytes, expert_sizes
from headrace.bench.rows import Row, make_row
from headrace.core.layouts import CacheLayout
from headrace.core.requests import SamplingParams
from headrace.engine.device.backend import DeviceBackend
from headrace.kernels.costs.moe import mean_experts_hit
from headrace.kernels.sampling.device_settings import DeviceRow

WARM_UP_STEPS, STEPS = 8, 40
# A row whose routing is farther from uniform than this says nothing about the floor.
MAX_SKEW = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCase:
    """What to measure: a batch of sequences of one length."""

    batch: int
    context: int


class DecodeBench:
    """Measures one model.

    Args:
        backend: The model; its pool is made here, and filled with random KV.
        block_size: Tokens of a block.
        largest: The case that takes most of the pool.
    """

    def __init__(self, backend: DeviceBackend, *, block_size: int, largest: DecodeCase) -> None:
        self._config = backend.decoder.config
        self._tokens = largest.context + WARM_UP_STEPS + STEPS
        self._blocks = -(-self._tokens // block_size)
        layout = CacheLayout(
            layers=backend.schemas,
            first_head=0,
            num_heads=self._config.num_kv_heads,
            num_blocks=self._blocks * largest.batch,
            block_size=block_size,
        )
        backend.allocate(layout)
        backend.randomize_pool()
        self._backend = backend
        self._step = backend.make_decode_step(max_rows=largest.batch, max_tokens=self._tokens)

    def run(self, case: DecodeCase, ceilings: Ceilings) -> Row:
        """Measure one case: a step's median and 99th percentile, experts hit, floor."""
        self._set_up(case)
        hit = self._experts_hit(case)
        self._set_up(case)
        for _ in range(WARM_UP_STEPS):
            self._step.run(case.batch)
        times = sorted(self._times_us(case.batch))
        p50_us = times[len(times) // 2]
        num_bytes = decode_bytes(
            self._config, batch=case.batch, context=case.context, experts_hit=hit
        )
        expected = mean_experts_hit(case.batch, expert_sizes(self._config))
        floor_us = ceilings.floor_us(num_bytes=num_bytes)
        return make_row(
            "decode",
            f"{self._config.architecture}/bf16/batch{case.batch}",
            value=round(case.batch * 1e6 / p50_us, 1),
            unit="tokens/s",
            p50_us=round(p50_us, 1),
            p99_us=round(times[int(len(times) * 0.99)], 1),
            bytes=round(num_bytes),
            floor_us=round(floor_us, 1),
            fraction=round(floor_us / p50_us, 3),
            context=case.context,
            experts_hit=round(hit, 2),
            experts_hit_expected=round(expected, 2),
            is_void=abs(hit / expected - 1) > MAX_SKEW,
            device=torch.cuda.get_device_name(),
        )

    def profile(self, case: DecodeCase, *, steps: int = 5) -> list[tuple[str, float, int]]:
        """Return (kernel, us a step, launches a step) of a case, longest first."""
        self._set_up(case)
        self._step.run(case.batch)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(steps):
                self._step.run(case.batch)
            torch.cuda.synchronize()
        events = sorted(profile.key_averages(), key=lambda each: -each.self_device_time_total)
        return [
            (each.key, each.self_device_time_total / steps, round(each.count / steps))
            for each in events
        ]

    def _set_up(self, case: DecodeCase) -> None:
        generator = np.random.default_rng(case.batch)
        tables = np.arange(case.batch * self._blocks, dtype=np.int32).reshape(case.batch, -1)
        width = self._step.tables_BP.shape[1]
        self._step.sampling.update(self._rows(case), positions=[case.context] * case.batch)
        self._step.set_rows(
            sources=[-1] * case.batch,
            token_ids=generator.integers(0, self._config.vocab_size, case.batch).tolist(),
            positions=[case.context - 1] * case.batch,
            tables=np.pad(tables, ((0, 0), (0, width - self._blocks))),
        )

    def _rows(self, case: DecodeCase) -> list[DeviceRow]:
        params = SamplingParams(temperature=0.0, max_tokens=1)
        row = DeviceRow.of(params, seed=0, vocab_size=self._config.vocab_size)
        return [row] * case.batch

    def _times_us(self, batch: int) -> Iterator[float]:
        for _ in range(STEPS):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            self._step.run(batch)
            stop.record()
            stop.synchronize()
            yield start.elapsed_time(stop) * 1e3

    def _experts_hit(self, case: DecodeCase) -> float:
        """Return the mean number of experts that a layer's tokens reach in one step."""
        counts: list[torch.Tensor] = []
        size = self._step.padded(case.batch)
        kernels = self._backend.kernels_for(size)

        def route(*args: object, **named: object) -> object:
            routing = kernels.route(*args, **named)
            starts = routing.starts_E1
            counts.append((starts[1:] > starts[:-1]).sum())
            return routing

        self._step.run_once(size, replace(kernels, route=route))
        return float(torch.stack(counts).float().mean()) if counts else 0.0


def run_decode(
    backend: DeviceBackend,
    cases: Sequence[DecodeCase],
    ceilings: Ceilings,
    *,
    block_size: int,
) -> tuple[DecodeBench, list[Row]]:
    """Measure all cases of one model."""
    largest = DecodeCase(
        batch=max(case.batch for case in cases), context=max(case.context for case in cases)
    )
    bench = DecodeBench(backend, block_size=block_size, largest=largest)
    return bench, [bench.run(case, ceilings) for case in cases]
