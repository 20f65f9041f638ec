"""Replicas on another host: the same tokens, and no host's end is the deployment's."""

import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.support.agent_process import running_agent, write_deployment, write_key
from tests.support.cli_process import BOUND_S, command, headrace, wait_gone
from tests.support.networks import NotPermittedError, two_networks
from tests.support.server_process import ServerProcess, running_server

PROMPT = "One evening a traveller came to the mill and asked for bread."


def ask(server: ServerProcess) -> str:
    """Return the greedy answer."""
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=BOUND_S)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def wait_ready(server: ServerProcess) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while httpx.get(f"{server.url}/ready", timeout=BOUND_S).status_code != 200:
        assert time.monotonic() < deadline_s, server.lines
        time.sleep(0.1)


def wait_line(server: ServerProcess, text: str) -> str:
    deadline_s = time.monotonic() + BOUND_S
    while not (found := [line for line in server.lines if text in line]):
        assert time.monotonic() < deadline_s, server.lines
        time.sleep(0.05)
    return found[0]


def test_an_agent_that_dies_is_named_and_its_replica_is_back_when_it_is(tmp_path: Path) -> None:
    key = write_key(tmp_path)
    with running_agent("127.0.0.2:0", key) as first:
        file = write_deployment(tmp_path, key=key, address=first.address)
        with running_server("--config", str(file)) as server:
            undisturbed = ask(server)
            ranks = first.ranks()
            assert len(ranks) == 2
            first.kill()
            wait_gone(ranks)
            lost = wait_line(server, "prefill0 re-forms")
            assert f"is lost: host b ({first.address})" in lost
            # Without a prefill replica the decode ranks compute prompts by themselves.
            assert ask(server) == undisturbed
            with running_agent(first.address, key) as second:
                wait_line(server, "prefill0 is back")
                wait_ready(server)
                assert ask(server) == undisturbed
                assert len(second.ranks()) == 2
                assert server.stop() == 130
                assert second.ranks() == []


def test_two_networks_compute_what_one_process_does(tmp_path: Path) -> None:
    key = write_key(tmp_path)
    try:
        with two_networks() as (here, there):
            listen = f"{there.address}:0"
            with running_agent(listen, key, prefix=there.prefix) as agent:
                file = write_deployment(tmp_path, key=key, address=agent.address)
                verify = command("verify", "--config", str(file), "--max-tokens", "8")
                done = subprocess.run(
                    [*here.prefix, *verify],
                    capture_output=True,
                    text=True,
                    timeout=BOUND_S,
                    check=False,
                )
                assert done.returncode == 0, done.stdout + done.stderr
                assert "EQUAL: 14 requests" in done.stdout
                assert agent.ranks() == []
    except NotPermittedError as error:
        pytest.skip(str(error))


def test_what_a_person_must_mend_on_another_host_is_one_line(tmp_path: Path) -> None:
    key, other = write_key(tmp_path), tmp_path / "other"
    other.mkdir()
    with running_agent("127.0.0.2:0", key) as agent:
        wrong = write_deployment(tmp_path, key=write_key(other), address=agent.address)
        done = headrace("serve", "--config", str(wrong), "--port", "0")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1] == (
            f"headrace: host b ({agent.address}): the agent holds another key; copy the same key "
            f"file to both hosts"
        )
    gone = write_deployment(tmp_path, key=key, address=agent.address)
    done = headrace("serve", "--config", str(gone), "--port", "0")
    assert done.returncode == 2
    assert f"host b ({agent.address}): no agent answers (Connection refused)" in done.stderr
