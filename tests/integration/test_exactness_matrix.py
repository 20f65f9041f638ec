"""Every pair of shardings against mono: logits equal bit for bit, and really disaggregated.

Mono's logits are computed once per dtype; each cell of prefill TP x decode DP x block sizes must
repeat them for four prompts, greedy and seeded, decoded at once. One decode replica serves the
cells of all three prefill replicas beside it. Ranks are threads of this process here;
``test_exactness_processes`` runs cells as real processes.
"""

from __future__ import annotations

import pytest

from headrace.core.launch import EngineConfig
from headrace.core.messages import Output
from headrace.core.sharding import Sharding
from headrace.models.embedded import embedded_folder
from tests.support.engine_deployment import EngineDeployment
from tests.support.exactness import check_disaggregated, check_equal, run_all, submit_all

DTYPES = ("float32", "bfloat16")
BLOCK_SIZES = ((16, 16), (16, 32), (32, 16))
TP_SIZES = (1, 2, 4)
DP_SIZES = (1, 2, 4)

Results = list[list[Output]]


def engine(dtype: str, block_size: int) -> EngineConfig:
    # A chunk of 48 tokens splits every prompt but the shortest two. Prompts repeat over cells, so
    # that a cache on the decoder would leave later cells nothing to transfer.
    return EngineConfig(
        dtype=dtype, block_size=block_size, kv_cache_mib=16, max_step_tokens=48, prefix_cache=False
    )


@pytest.fixture(scope="module")
def mono() -> dict[str, Results]:
    """Mono's outputs by dtype."""
    outputs = {}
    for dtype in DTYPES:
        with EngineDeployment(embedded_folder(), engine=engine(dtype, 16)) as deployment:
            outputs[dtype] = run_all(deployment)
    return outputs


@pytest.fixture(
    scope="module",
    params=[(dtype, blocks, dp) for dtype in DTYPES for blocks in BLOCK_SIZES for dp in DP_SIZES],
    ids=lambda cell: f"{cell[0]}-blocks{cell[1][0]}to{cell[1][1]}-dp{cell[2]}",
)
def decoded(request: pytest.FixtureRequest) -> tuple[str, dict[int, Results]]:
    """What one decode replica got from each prefill replica, by TP size."""
    dtype, blocks, dp = request.param
    with EngineDeployment(
        embedded_folder(),
        prefill=[Sharding(tp=tp, ep=tp) for tp in TP_SIZES],
        decode=Sharding(dp=dp, ep=dp),
        prefill_engine=engine(dtype, blocks[0]),
        engine=engine(dtype, blocks[1]),
    ) as deployment:
        ids = [submit_all(deployment, prefill=index) for index in range(len(TP_SIZES))]
        results = {tp: deployment.finish(*cell) for tp, cell in zip(TP_SIZES, ids, strict=True)}
        deployment.wait_idle()
    return dtype, results


@pytest.mark.parametrize("tp", TP_SIZES, ids=lambda tp: f"tp{tp}")
def test_every_sharding_computes_monos_logits_bit_for_bit(
    mono: dict[str, Results], decoded: tuple[str, dict[int, Results]], tp: int
) -> None:
    dtype, results = decoded
    check_equal(mono[dtype], results[tp])
    check_disaggregated(results[tp], replica=f"prefill{TP_SIZES.index(tp)}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_tcp_carries_the_same_bits(mono: dict[str, Results], dtype: str) -> None:
    with EngineDeployment(
        embedded_folder(),
        prefill=[Sharding(tp=tp, ep=tp) for tp in TP_SIZES],
        decode=Sharding(dp=2, ep=2),
        prefill_engine=engine(dtype, 32),
        engine=engine(dtype, 16),
        transport="tcp",
    ) as deployment:
        ids = [submit_all(deployment, prefill=index) for index in range(len(TP_SIZES))]
        results = [deployment.finish(*cell) for cell in ids]
        deployment.wait_idle()
    for index, got in enumerate(results):
        check_equal(mono[dtype], got)
        check_disaggregated(got, replica=f"prefill{index}")


def test_experts_split_less_than_attention_compute_monos_logits_too(
    mono: dict[str, Results],
) -> None:
    """With ep under tp an expert's width is split: other ranks own other leaves of its sum."""
    shardings = [Sharding(tp=2, ep=1), Sharding(tp=4, ep=1), Sharding(tp=4, ep=2)]
    with EngineDeployment(
        embedded_folder(),
        prefill=shardings,
        decode=Sharding(dp=2, ep=2),
        engine=engine("bfloat16", 16),
    ) as deployment:
        ids = [submit_all(deployment, prefill=index) for index in range(len(shardings))]
        results = [deployment.finish(*cell) for cell in ids]
    for index, got in enumerate(results):
        check_equal(mono["bfloat16"], got)
        check_disaggregated(got, replica=f"prefill{index}")
