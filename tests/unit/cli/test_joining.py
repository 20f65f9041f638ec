"""The hosts of a deployment, from its config."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headrace.cli.joining import join_hosts
from headrace.cli.source import ModelSource
from headrace.cluster.agent.keys import write_new_key
from headrace.core.errors import ConfigError
from headrace.deployment import DeploymentConfig, ReplicaConfig, launch_specs
from tests.support.cli_model import model_source


def spanning(tmp_path: Path, **changes: object) -> DeploymentConfig:
    if not (tmp_path / "key").exists():
        write_new_key(tmp_path / "key")
    config = DeploymentConfig(
        model=str(tmp_path),
        transport="tcp",
        prefill=ReplicaConfig(hosts=("b",)),
        decode=ReplicaConfig(),
        hosts={"b": "127.0.0.2:7100", "unused": "no-host.invalid:1"},
        key_file=str(tmp_path / "key"),
    )
    return msgspec.structs.replace(config, **changes)


def join(config: DeploymentConfig, source: ModelSource):
    return join_hosts(config, source, deployment_id="d", on_line=lambda *_: None)


def test_a_deployment_of_one_host_calls_nobody_and_has_a_fresh_key(tmp_path: Path) -> None:
    source = model_source(tmp_path)
    joined = [join(DeploymentConfig(), source) for _ in range(2)]
    assert joined[0].key != joined[1].key
    assert (joined[0].addresses, joined[0].own_address) == (None, "")


def test_only_hosts_that_are_used_are_joined_each_by_its_address(tmp_path: Path) -> None:
    source, config = model_source(tmp_path), spanning(tmp_path)
    joined = join(config, source)
    assert joined.addresses == {"here": joined.own_address, "b": "127.0.0.2"}
    specs = launch_specs(
        config,
        deployment_id="d",
        run_dir="",
        key="",
        supervisor="",
        model="m",
        is_moe=True,
        addresses=joined.addresses,
    )
    assert [str(joined.hosts.of(spec)) for spec in specs] == ["host b (127.0.0.2:7100)", "None"]
    assert join(config, source).key != joined.key


def test_the_embedded_model_is_asked_for_by_name_and_others_by_folder(tmp_path: Path) -> None:
    source = model_source(tmp_path / "m")
    asked = []
    for model in (str(tmp_path / "m"), "tiny"):
        config = spanning(tmp_path, model=model)
        host = join(config, replace(source, launch="/abs/m")).hosts._hosts["b"]
        asked.append(host._opening.model)
    assert asked == ["/abs/m", "tiny"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"address": "127.0.0.1", "hosts": {"b": "10.0.0.2:7100"}}, "loopback, and host b"),
        ({"hosts": {"b": "no-host.invalid:7100"}}, "hosts.b: no address is known of"),
        ({"key_file": "/nowhere/key"}, "key file /nowhere/key: No such file"),
    ],
)
def test_what_a_person_must_mend_is_one_line(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    source = model_source(tmp_path)
    with pytest.raises(ConfigError, match=message):
        join(spanning(tmp_path, **changes), source)
