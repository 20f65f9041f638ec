"""The exactness matrix with one process a rank: some cells always, all in `make test-all`.

Threads share an interpreter, processes share only memory and sockets: what crosses between them
is the real wire format, the real doorbells and the real collectives.
"""

from __future__ import annotations

import pytest

from headrace.core.launch import EngineConfig
from headrace.core.messages import Output
from headrace.core.sharding import Sharding
from headrace.models.embedded import embedded_folder
from tests.support.engine_deployment import EngineDeployment
from tests.support.exactness import check_disaggregated, check_equal, run_all

# (transport, dtype, prefill block size, decode block size, tp, dp)
Cell = tuple[str, str, int, int, int, int]
ALWAYS: tuple[Cell, ...] = (
    ("shm", "float32", 16, 16, 1, 2),
    ("shm", "float32", 16, 32, 2, 1),
    ("shm", "bfloat16", 32, 16, 2, 2),
    ("shm", "bfloat16", 16, 16, 4, 2),
    ("tcp", "float32", 16, 32, 2, 1),
    ("tcp", "bfloat16", 32, 16, 4, 2),
)
ALL: tuple[Cell, ...] = tuple(
    (transport, dtype, *blocks, tp, dp)
    for transport in ("shm", "tcp")
    for dtype in ("float32", "bfloat16")
    for blocks in ((16, 16), (16, 32), (32, 16))
    for tp in (1, 2, 4)
    for dp in (1, 2, 4)
)


def engine(dtype: str, block_size: int) -> EngineConfig:
    return EngineConfig(
        dtype=dtype, block_size=block_size, kv_cache_mib=8, max_step_tokens=48, threads=1
    )


@pytest.fixture(scope="module")
def mono() -> dict[str, list[list[Output]]]:
    """Mono's outputs by dtype, each computed by a process of its own."""
    outputs = {}
    for dtype in ("float32", "bfloat16"):
        with EngineDeployment(
            embedded_folder(), engine=engine(dtype, 16), as_processes=True
        ) as deployment:
            outputs[dtype] = run_all(deployment)
    return outputs


def check_cell(mono: dict[str, list[list[Output]]], cell: Cell) -> None:
    transport, dtype, prefill_block, decode_block, tp, dp = cell
    with EngineDeployment(
        embedded_folder(),
        prefill=Sharding(tp=tp, ep=tp),
        decode=Sharding(dp=dp, ep=dp),
        prefill_engine=engine(dtype, prefill_block),
        engine=engine(dtype, decode_block),
        transport=transport,
        as_processes=True,
    ) as deployment:
        got = run_all(deployment)
        deployment.wait_idle()
    check_equal(mono[dtype], got)
    check_disaggregated(got)


@pytest.mark.parametrize("cell", ALWAYS, ids=str)
def test_processes_compute_monos_logits_bit_for_bit(
    mono: dict[str, list[list[Output]]], cell: Cell
) -> None:
    check_cell(mono, cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in ALL if cell not in ALWAYS], ids=str)
def test_every_cell_as_processes_computes_monos_logits_bit_for_bit(
    mono: dict[str, list[list[Output]]], cell: Cell
) -> None:
    check_cell(mono, cell)
