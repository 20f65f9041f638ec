"""Prefill steps of a whole model on one device, and the rate that a fleet is sized by."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from headrace.bench.device.ceilings import Ceilings
from headrace.bench.device.floors import prefill_flops
from headrace.bench.rows import Row, make_row
from headrace.core.layouts import CacheLayout
from headrace.engine.backend import Row as PromptRow
from headrace.engine.device.backend import DeviceBackend

REPEATS = 7


def run_prefill(
    backend: DeviceBackend,
    batches: Sequence[Sequence[int]],
    ceilings: Ceilings,
    *,
    block_size: int,
) -> list[Row]:
    """Measure steps of fresh prompts.

    Args:
        backend: The model; its pool is made here.
        batches: For each step, the lengths of its prompts.
        ceilings: Of the same run.
        block_size: Tokens of a block.
    """
    config = backend.decoder.config
    most = max(sum(-(-length // block_size) for length in lens) for lens in batches)
    backend.allocate(
        CacheLayout(
            layers=backend.schemas,
            first_head=0,
            num_heads=config.num_kv_heads,
            num_blocks=most,
            block_size=block_size,
        )
    )
    rows = []
    for lens in batches:
        times = _times_s(backend, lens, block_size=block_size)
        p50_s = times[len(times) // 2]
        flops = prefill_flops(config, list(lens))
        floor_us = ceilings.floor_us(num_bytes=backend.decoder.weights.num_bytes, flops=flops)
        rows.append(
            make_row(
                "prefill",
                f"{config.architecture}/bf16/{len(lens)}x{lens[0]}",
                value=round(sum(lens) / p50_s, 1),
                unit="tokens/s",
                p50_us=round(p50_s * 1e6, 1),
                p99_us=round(times[-1] * 1e6, 1),
                flops=round(flops),
                floor_us=round(floor_us, 1),
                fraction=round(floor_us / (p50_s * 1e6), 3),
                device=torch.cuda.get_device_name(),
            )
        )
    return rows


def fit_prompt_time(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Fit ``time = fixed + per_token * n + per_pair * n**2`` to single prompts, by relative error.

    Args:
        points: (tokens, seconds), at least three lengths.

    Returns:
        The three coefficients [s, s/token, s/token**2].

    Example:
        >>> times = [(n, 0.01 + 1e-5 * n + 1e-10 * n * n) for n in (1000, 2000, 4000, 8000)]
        >>> [round(x * 1e12) for x in fit_prompt_time(times)]
        [10000000000, 10000000, 100]
    """
    tokens = np.array([n for n, _ in points], dtype=float)
    seconds = np.array([s for _, s in points])
    # Columns of like size, or the solver would lose the small coefficients.
    scale = np.array([1.0, 1e3, 1e6])
    columns = np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1) / scale
    fitted, *_ = np.linalg.lstsq(columns / seconds[:, None], np.ones_like(seconds), rcond=None)
    fixed, per_token, per_pair = fitted / scale
    return float(fixed), float(per_token), float(per_pair)


def _times_s(backend: DeviceBackend, lens: Sequence[int], *, block_size: int) -> list[float]:
    generator = np.random.default_rng(len(lens))
    vocab_size = backend.decoder.config.vocab_size
    rows, first = [], 0
    for length in lens:
        num_blocks = -(-length // block_size)
        tokens = generator.integers(0, vocab_size, length).tolist()
        blocks = range(first, first + num_blocks)
        rows.append(PromptRow(token_ids=tokens, start=0, block_ids=blocks, wants_logits=True))
        first += num_blocks
    times = []
    for repeat in range(REPEATS + 1):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        backend.run(rows)
        torch.cuda.synchronize()
        if repeat:  # the first compiles
            times.append(time.perf_counter() - started_s)
    return sorted(times)
