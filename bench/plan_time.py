"""Time of planning, making and proving every fragment of one large request, in one line.

The request is 6000 tokens of Qwen3-235B (94 layers, 4 KV heads of 128, bf16, blocks of 128),
prefill TP4 to one decode rank: 35,344 atoms. ``scattered`` block ids are the worst case (no two
atoms merge), ``contiguous`` the best. Run with ``OMP_NUM_THREADS=1``.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from headrace.core.layouts import CacheLayout, KvSchema
from headrace.transfer.plan import TransferPlan, plan_transfer

TOKENS, BLOCK_SIZE, TP, REPEATS = 6000, 128, 4, 200
NUM_BLOCKS = -(-TOKENS // BLOCK_SIZE)


def make_layouts(ranks: int, num_blocks: int) -> list[CacheLayout]:
    """Return one layout per rank of a group that splits the model's four KV heads."""
    schema = KvSchema(num_kv_heads=4, head_dim=128, dtype="bfloat16")
    heads = 4 // ranks
    return [
        CacheLayout(
            layers=(schema,) * 94,
            first_head=rank * heads,
            num_heads=heads,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
        )
        for rank in range(ranks)
    ]


SOURCES, TARGETS = make_layouts(TP, 600), make_layouts(1, 800)


def plan_and_prove(source_blocks: list[int], target_blocks: list[int]) -> TransferPlan:
    """Plan the request, make all fragments of all layers, and prove the plan."""
    plan = plan_transfer(
        sources=SOURCES,
        targets=TARGETS,
        source_blocks=source_blocks,
        target_blocks=target_blocks,
        start=0,
        stop=TOKENS,
        seed=1,
    )
    for source in range(TP):
        plan.all_layers(source, 0)
    return plan.prove()


def measure(source_blocks: list[int], target_blocks: list[int]) -> tuple[float, float, int]:
    """Return p50 [us of CPU], best [us of wall time] and the number of writes."""
    cpu_us, wall_us = [], []
    for _ in range(REPEATS):
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        plan = plan_and_prove(source_blocks, target_blocks)
        cpu_us.append((time.thread_time_ns() - cpu_ns) / 1e3)
        wall_us.append((time.perf_counter_ns() - wall_ns) / 1e3)
    writes = sum(plan.all_layers(source, 0).num_bytes.size for source in range(TP))
    return statistics.median(cpu_us), min(wall_us), writes


def main() -> None:
    """Print one line."""
    rng = random.Random(0)
    cases = {
        "scattered": (rng.sample(range(600), NUM_BLOCKS), rng.sample(range(800), NUM_BLOCKS)),
        "contiguous": (list(range(9, 9 + NUM_BLOCKS)), list(range(5, 5 + NUM_BLOCKS))),
    }
    parts = []
    for name, blocks in cases.items():
        p50, best, writes = measure(*blocks)
        parts.append(f"{name} {writes} writes {p50:.0f} us of CPU (p50), {best:.0f} us best")
    sys.stdout.write(f"plan+prove {94 * 2 * 4 * NUM_BLOCKS} atoms: {'; '.join(parts)}\n")


if __name__ == "__main__":
    main()
