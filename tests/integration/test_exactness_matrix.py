"""Every pair of shardings against mono: logits equal bit for bit, and really disaggregated.

Mono's logits are computed once per dtype; each cell of prefill TP x decode DP x block sizes must
repeat them for four prompts decoded at once, greedy and seeded. Ranks are threads of this process
here; ``test_exactness_processes`` runs cells as real processes.
"""

from __future__ import annotations

import pytest

from headrace.core.launch import EngineConfig
from headrace.core.messages import Output
from headrace.core.sharding import Sharding
from headrace.models.embedded import embedded_folder
from tests.support.engine_deployment import EngineDeployment
from tests.support.exactness import check_disaggregated, check_equal, run_all

DTYPES = ("float32", "bfloat16")
BLOCK_SIZES = ((16, 16), (16, 32), (32, 16))
TP_SIZES = (1, 2, 4)
DP_SIZES = (1, 2, 4)


def engine(dtype: str, block_size: int) -> EngineConfig:
    # A chunk of 48 tokens splits every prompt but the shortest.
    return EngineConfig(dtype=dtype, block_size=block_size, kv_cache_mib=8, max_step_tokens=48)


@pytest.fixture(scope="module", params=DTYPES)
def mono(request: pytest.FixtureRequest) -> tuple[str, list[list[Output]]]:
    with EngineDeployment(embedded_folder(), engine=engine(request.param, 16)) as deployment:
        return request.param, run_all(deployment)


@pytest.mark.parametrize("dp", DP_SIZES, ids=lambda dp: f"dp{dp}")
@pytest.mark.parametrize("tp", TP_SIZES, ids=lambda tp: f"tp{tp}")
@pytest.mark.parametrize("blocks", BLOCK_SIZES, ids=lambda pair: f"blocks{pair[0]}to{pair[1]}")
def test_every_sharding_computes_monos_logits_bit_for_bit(
    mono: tuple[str, list[list[Output]]], blocks: tuple[int, int], tp: int, dp: int
) -> None:
    dtype, expected = mono
    with EngineDeployment(
        embedded_folder(),
        prefill=Sharding(tp=tp, ep=tp),
        decode=Sharding(dp=dp, ep=dp),
        prefill_engine=engine(dtype, blocks[0]),
        engine=engine(dtype, blocks[1]),
    ) as deployment:
        got = run_all(deployment)
        deployment.wait_idle()
    check_equal(expected, got)
    check_disaggregated(got)
