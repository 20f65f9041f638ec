"""Ranks without HTTP: all up or one named error, and nothing left in any case."""

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from headrace.cli.running import RunningCluster, _log_line, running_cluster, to_the_end
from headrace.cluster.rundir import SEGMENTS
from headrace.core.errors import ConfigError, ReplicaError, ShardingError
from headrace.core.messages import Heartbeat, Outputs, Ready, Submit, Topology
from headrace.core.requests import SamplingParams
from headrace.core.sharding import Role
from headrace.deployment import DeploymentConfig, ReplicaConfig
from tests.support.cli_model import ANSWERING, model_source, split_deployment


def submit(cluster: RunningCluster, text: str) -> None:
    decode = next(r for r in cluster.topology.replicas if r.role is Role.DECODE)
    request = Submit(
        request_id="one",
        reply_to=cluster.address,
        prompt_ids=list(text.encode()),
        params=SamplingParams(max_tokens=9),
    )
    cluster.send(decode.ranks[1].address, request)


async def test_requests_reach_ranks_and_outputs_reach_every_listener(tmp_path):
    heard: list[object] = []
    is_over = asyncio.Event()

    def listen(message):
        heard.append(message)
        if isinstance(message, Outputs) and message.outputs[-1].finish_reason:
            is_over.set()

    source = model_source(tmp_path)
    cluster = RunningCluster(split_deployment(), source, supervision=ANSWERING)
    try:
        cluster.open()
        cluster.listen(listen)
        await cluster.start()
        assert [replica.name for replica in cluster.topology.replicas] == ["prefill0", "decode0"]
        assert [ready.replica for ready in cluster.ready] == ["prefill0", "decode0", "decode0"]
        assert sorted(cluster.pids) == ["decode0.0", "decode0.1", "prefill0.0"]
        submit(cluster, "hey")
        await cluster.guard(is_over.wait())
        assert cluster.counters()["headrace_edge_control_received_total"] >= len(heard) - 1
    finally:
        await cluster.stop()
    assert cluster.counters() == {}, "a closed socket counts no more"
    assert isinstance(heard[0], Topology)
    assert [type(message) for message in heard[1:4]] == [Ready, Ready, Ready]
    assert sum(isinstance(message, Heartbeat) for message in heard) <= 3
    outputs = [o for message in heard if isinstance(message, Outputs) for o in message.outputs]
    assert "".join(output.text for output in outputs) == "hey"


async def test_a_lost_rank_ends_the_guarded_work_with_its_name(tmp_path):
    async with running_cluster(
        split_deployment(), model_source(tmp_path), supervision=ANSWERING
    ) as cluster:
        submit(cluster, "now die! please")
        with pytest.raises(ReplicaError, match=r"^decode0\.1 was ended by SIGKILL"):
            await cluster.guard(asyncio.Event().wait())


async def test_a_blow_falls_on_the_rank_that_chaos_names(tmp_path):
    config = msgspec.structs.replace(split_deployment(), chaos="kill=decode0.1@0s")
    async with running_cluster(config, model_source(tmp_path), supervision=ANSWERING) as cluster:
        with pytest.raises(ReplicaError, match=r"^decode0\.1 was ended by SIGKILL"):
            await cluster.guard(asyncio.Event().wait())


async def test_a_blow_that_no_rank_can_take_is_refused_before_anything_is_made(tmp_path):
    config = msgspec.structs.replace(split_deployment(), chaos="stop=prefill0.7@1s")
    cluster = RunningCluster(config, model_source(tmp_path), supervision=ANSWERING)
    with pytest.raises(ConfigError, match=r"stop=prefill0\.7: no such rank.* decode0\.0, decode"):
        cluster.open()
    await cluster.stop()


async def test_blows_that_are_still_to_come_end_with_the_cluster(tmp_path):
    config = msgspec.structs.replace(split_deployment(), chaos="kill=decode@3600s")
    async with running_cluster(config, model_source(tmp_path), supervision=ANSWERING):
        before = asyncio.all_tasks()
    assert len(asyncio.all_tasks()) < len(before)


async def test_guarded_work_passes_its_result_and_its_own_error_on(tmp_path):
    async def fail() -> None:
        raise ReplicaError("mine")

    async def answer() -> int:
        return 7

    config = DeploymentConfig(mono=ReplicaConfig())
    async with running_cluster(config, model_source(tmp_path), supervision=ANSWERING) as cluster:
        assert await cluster.guard(answer()) == 7
        with pytest.raises(ReplicaError, match="^mine$"):
            await cluster.guard(fail())


async def test_after_the_context_no_folder_segment_or_process_is_left(tmp_path):
    config = DeploymentConfig(mono=ReplicaConfig())
    async with running_cluster(config, model_source(tmp_path), supervision=ANSWERING) as cluster:
        folder = cluster.address.removeprefix("ipc://").rpartition("/")[0]
    name = folder.rpartition("/")[2]
    assert name.startswith("headrace-")
    assert cluster.pids == {}
    assert list(SEGMENTS.glob(f"{name}*")) == []
    assert not Path(folder).exists()


async def test_an_impossible_sharding_is_refused_before_anything_is_made(tmp_path):
    config = DeploymentConfig(prefill=ReplicaConfig(tp=3), decode=ReplicaConfig())
    cluster = RunningCluster(config, model_source(tmp_path))
    with pytest.raises(ShardingError, match="tp=3 does not divide the model's 4 KV heads"):
        cluster.open()
    with pytest.raises(ReplicaError, match="control socket is not open"):
        _ = cluster.address
    await cluster.stop()


async def test_what_is_known_only_after_the_start_cannot_be_asked_before(tmp_path):
    cluster = RunningCluster(DeploymentConfig(), model_source(tmp_path))
    with pytest.raises(ReplicaError, match="not been started"):
        _ = cluster.topology
    with pytest.raises(ReplicaError, match="not been started"):
        _ = cluster.pids


async def test_a_ranks_lines_keep_their_level(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, logger="headrace.rank"):
        _log_line("decode0.0", "WARNING pool: nearly full")
        _log_line("decode0.0", "Traceback (most recent call last):")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "decode0.0: WARNING pool: nearly full"),
        ("INFO", "decode0.0: Traceback (most recent call last):"),
    ]


async def test_work_that_must_end_does_so_through_every_cancellation():
    steps: list[int] = []

    async def clean_up() -> None:
        for step in range(3):
            await asyncio.sleep(0)
            steps.append(step)

    task = asyncio.create_task(to_the_end(clean_up()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == [0, 1, 2]


async def test_work_that_must_end_passes_its_own_error_on():
    async def clean_up() -> None:
        raise ReplicaError("mine")

    with pytest.raises(ReplicaError, match="^mine$"):
        await to_the_end(clean_up())
