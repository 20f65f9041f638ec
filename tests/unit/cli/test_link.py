"""A conversation's way to a server, ours or somebody else's, over real HTTP."""

from concurrent.futures import wait

import pytest

from headrace.cli.chat import Place
from headrace.cli.link import open_link
from headrace.cli.loop_thread import LoopThread
from headrace.core.errors import ConfigError, ReplicaError, ShardingError
from headrace.deployment import DeploymentConfig, ReplicaConfig
from headrace.serving.openai.config import ServingConfig
from tests.support.cli_model import answer_without_engine, write_model

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _ranks_that_repeat_what_they_hear(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    answer_without_engine(monkeypatch, tmp_path / "tiny")


def place(folder, **options) -> Place:
    serving = ServingConfig(api_keys=("secret",), model_name="parrot")
    return Place(
        url=NOWHERE, deployment=DeploymentConfig(model=str(folder), serving=serving, **options)
    )


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_server_is_started_for_the_conversation_and_ends_with_it(tmp_path) -> None:
    pieces: list[str] = []
    with LoopThread() as loop:
        link = open_link(loop, place(write_model(tmp_path)), "", fields={"seed": 1})
        assert link.ask(say("hello"), pieces.append).text == "hello"
        assert link.ask(say("again"), pieces.append).text == "again"
    assert "".join(pieces) == "helloagain"


def test_a_rank_that_dies_is_named_in_this_turn_and_in_the_next(tmp_path) -> None:
    with LoopThread() as loop:
        link = open_link(loop, place(write_model(tmp_path)), "parrot", fields={})
        with pytest.raises(ReplicaError, match=r"mono0\.0 was ended by SIGKILL"):
            link.ask(say("die! now"), lambda _: None)
        wait([link._life])
        with pytest.raises(ReplicaError, match=r"mono0\.0 was ended by SIGKILL"):
            link.ask(say("are you there?"), lambda _: None)


def test_a_deployment_that_cannot_be_says_why_at_once(tmp_path) -> None:
    bad = place(write_model(tmp_path), mono=ReplicaConfig(tp=2))
    with LoopThread() as loop, pytest.raises(ShardingError, match="mono tp=2"):
        open_link(loop, bad, "", fields={})


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with LoopThread() as loop, pytest.raises(ConfigError, match="nobody answers"):
        open_link(loop, Place(url=NOWHERE), "", fields={})
