"""Requests are spread over all ranks, and outputs gathered until every one has ended."""

from __future__ import annotations

import asyncio

import pytest

from headrace.cli.verify_run import Collector, Request, make_submits, mono_of
from headrace.core.errors import ReplicaError
from headrace.core.launch import EngineConfig
from headrace.core.messages import Heartbeat, Output, Outputs, RankInfo, ReplicaInfo, Trace
from headrace.core.requests import FinishReason, Ledger, SamplingParams
from headrace.core.sharding import Role, Sharding
from headrace.deployment import DeploymentConfig, ReplicaConfig

PARAMS = SamplingParams(max_tokens=2)


def replica(name: str, role: Role, num_ranks: int) -> ReplicaInfo:
    ranks = [RankInfo(rank=i, generation=1, address=f"{name}.{i}") for i in range(num_ranks)]
    return ReplicaInfo(name=name, role=role, sharding=Sharding(), ranks=ranks)


def output(request_id: str, token_id: int, **fields: object) -> Output:
    trace = Trace(logits=b"\0\0\0\0", kv_digests=[[b"d"]])
    return Output(request_id=request_id, choice=0, token_ids=[token_id], trace=trace, **fields)


def ended(request_id: str, **fields: object) -> Output:
    named = {"finish_reason": FinishReason.LENGTH, "ledger": Ledger(), **fields}
    return output(request_id, 9, **named)


def test_mono_is_one_rank_with_the_deployments_engine() -> None:
    engine = EngineConfig(block_size=32)
    config = DeploymentConfig(prefill=ReplicaConfig(), decode=ReplicaConfig(dp=2), engine=engine)
    assert mono_of(config).roles == ((Role.MONO, ReplicaConfig()),)
    assert mono_of(config).engine == engine


def test_requests_take_decode_ranks_and_prefill_replicas_in_turn() -> None:
    replicas = [
        replica("prefill0", Role.PREFILL, 2),
        replica("prefill1", Role.PREFILL, 2),
        replica("decode0", Role.DECODE, 2),
        replica("decode1", Role.DECODE, 1),
    ]
    requests = [Request(prompt_ids=(index,), params=PARAMS) for index in range(4)]
    submits = make_submits(requests, replicas=replicas, reply_to="edge", first=10, shift=1)
    addresses = [address for address, _ in submits]
    assert addresses == ["decode0.1", "decode1.0", "decode0.0", "decode0.1"]
    assert [submit.prefill_replica for _, submit in submits] == ["prefill0", "prefill1"] * 2
    assert [submit.ordinal for _, submit in submits] == [10, 11, 12, 13]
    assert [submit.prompt_ids for _, submit in submits] == [[0], [1], [2], [3]]
    assert len({submit.request_id for _, submit in submits}) == 4
    assert all(submit.trace and submit.reply_to == "edge" for _, submit in submits)


def test_a_mono_deployment_has_no_prefiller_to_name() -> None:
    (made,) = make_submits(
        [Request(prompt_ids=(1,), params=PARAMS)],
        replicas=[replica("mono0", Role.MONO, 1)],
        reply_to="edge",
    )
    assert (made[0], made[1].prefill_replica) == ("mono0.0", "")


async def test_outputs_of_interleaved_requests_are_told_apart() -> None:
    collector = Collector()
    for name in ("a", "b"):
        collector.expect(name)
    waiting = asyncio.ensure_future(collector.wait())
    collector.on_message(Outputs(rank=0, outputs=[output("a", 1), output("b", 2)]))
    info = RankInfo(rank=0, generation=1, address="x")
    collector.on_message(Heartbeat(replica="decode0", info=info, progress=1, has_work=True))
    await asyncio.sleep(0)
    assert not waiting.done()
    collector.on_message(Outputs(rank=1, outputs=[ended("b"), ended("a")]))
    await waiting
    assert collector.run_of("a").token_ids == [1, 9]
    run = collector.run_of("b")
    assert run.token_ids == [2, 9]
    assert (len(run.logits), run.kv_digests) == (2, [[[b"d"]], [[b"d"]]])


async def test_nothing_coming_is_an_error_and_not_a_hang() -> None:
    collector = Collector()
    collector.expect("a")
    with pytest.raises(ReplicaError, match="with 1 requests unfinished"):
        await collector.wait(stall_s=0.01)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (ended("a", error="no room"), "ended with an error: no room"),
        (ended("a", ledger=None), "without a ledger"),
        (
            Output(
                request_id="a",
                choice=0,
                token_ids=[1],
                finish_reason=FinishReason.STOP,
                ledger=Ledger(),
            ),
            "or a trace of every token",
        ),
    ],
)
async def test_a_request_that_cannot_be_compared_is_refused(last: Output, message: str) -> None:
    collector = Collector()
    collector.expect("a")
    collector.on_message(Outputs(rank=0, outputs=[last]))
    await collector.wait()
    with pytest.raises(ReplicaError, match=message):
        collector.run_of("a")
