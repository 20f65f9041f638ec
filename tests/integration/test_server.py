"""The whole server on scripted tokens, prefill and decode apart, through the official client."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from headrace.models.embedded import embedded_folder
from headrace.text.tokenizer import Tokenizer
from tests.support.server_process import ServerProcess, running_server

DISAGGREGATED = (
    "--prefill",
    "tp=2,ep=2",
    "--decode",
    "dp=2,ep=2",
    "--set",
    "engine.kv_cache_mib=8",
)
TEXTS = {
    "korean": "\uc0bc\uacb9\uc0b4 \U0001f469\u200d\U0001f467",
    "newline": "a\nb",
    "plain": "The quick brown fox jumps over the lazy dog.",
}


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return one token per byte of ``text``."""
    by_bytes = {tokenizer.token_bytes(index): index for index in range(tokenizer.vocab_size)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.open(embedded_folder())


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer
) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("replay") / "script.jsonl"
    end = tokenizer.token_id("<|im_end|>")
    lines = [
        {"match": tokenizer.encode(name), "tokens": [*byte_ids(tokenizer, text), end]}
        for name, text in TEXTS.items()
    ]
    lines.append({"tokens": byte_ids(tokenizer, "abcdefghij" * 30)})
    path.write_text("\n".join(map(json.dumps, lines)))
    with running_server(f"replay:{path}", *DISAGGREGATED) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60.0)


def complete(client: openai.OpenAI, server: ServerProcess, **fields: object) -> object:
    fields = {"model": server.model, "max_tokens": 100, "temperature": 0.0} | fields
    return client.completions.create(**fields)  # type: ignore[call-overload]


def streamed(client: openai.OpenAI, server: ServerProcess, **fields: object) -> str:
    chunks = complete(client, server, stream=True, **fields)
    return "".join(choice.text for chunk in chunks for choice in chunk.choices)  # type: ignore[attr-defined]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 16, 17])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_exactly_max_tokens_come(
    client: openai.OpenAI, server: ServerProcess, max_tokens: int, is_stream: bool
) -> None:
    extra = {"ignore_eos": True}
    fields = {"prompt": [300] * 20, "max_tokens": max_tokens, "extra_body": extra}
    if is_stream:
        options = {"stream_options": {"include_usage": True}, "stream": True}
        chunks = list(complete(client, server, **fields, **options))  # type: ignore[call-overload]
        usage = chunks[-1].usage
        assert chunks[-1].choices == []
        reasons = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    else:
        answer = complete(client, server, **fields)
        usage = answer.usage  # type: ignore[attr-defined]
        reasons = [choice.finish_reason for choice in answer.choices]  # type: ignore[attr-defined]
    assert usage.completion_tokens == max_tokens
    assert reasons == ["length"]


def test_multi_byte_text_comes_whole(client: openai.OpenAI, server: ServerProcess) -> None:
    assert streamed(client, server, prompt="korean") == TEXTS["korean"]


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_a_character_cut_by_the_limit_is_one_replacement_at_most(
    client: openai.OpenAI, server: ServerProcess, max_tokens: int
) -> None:
    text = streamed(client, server, prompt="korean", max_tokens=max_tokens)
    assert text.count("\ufffd") <= 1
    assert TEXTS["korean"].startswith(text.rstrip("\ufffd"))


def test_a_newline_is_not_eaten_by_a_stop_that_begins_with_one(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    assert streamed(client, server, prompt="newline", stop="\nEND") == "a\nb"


@pytest.mark.parametrize("stop", ["n fo", "x ", "dog.", "zzz"])
@pytest.mark.parametrize("include", [False, True], ids=["without", "with"])
def test_stop_strings_never_leak(
    client: openai.OpenAI, server: ServerProcess, stop: str, include: bool
) -> None:
    text = TEXTS["plain"]
    cut = text.find(stop)
    expected = text if cut < 0 else text[: cut + len(stop) * include]
    fields = {"prompt": "plain", "stop": stop}
    extra = {"extra_body": {"include_stop_str_in_output": include}}
    assert streamed(client, server, **fields, **extra) == expected
    answer = complete(client, server, **fields, **extra)
    assert answer.choices[0].text == expected  # type: ignore[attr-defined]


def test_the_same_request_id_twice_at_once_answers_both(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    def call(_: int) -> str:
        headers = {"X-Request-Id": "the-same"}
        return streamed(client, server, prompt="plain", extra_headers=headers)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(call, range(2))) == [TEXTS["plain"]] * 2


def test_twenty_calls_with_client_ids_all_finish(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    def call(number: int) -> str:
        headers = {"X-Request-Id": f"client-{number % 3}"}
        return streamed(client, server, prompt="plain", extra_headers=headers)

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(call, range(20))) == [TEXTS["plain"]] * 20


def ledger_of(answer: object) -> dict:
    return answer.choices[0].model_extra["ledger"]  # type: ignore[attr-defined]


def test_a_prompt_is_computed_elsewhere_but_for_its_last_token(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    prompt = [1000 + index for index in range(40)]
    extra = {"extra_body": {"return_ledger": True}}
    ledger = ledger_of(complete(client, server, prompt=prompt, max_tokens=4, **extra))
    assert ledger["computed_tokens"] == 1
    assert ledger["transferred_tokens"] == 39
    assert ledger["bytes_received"] == ledger["bytes_expected"] > 0


def test_cached_tokens_of_a_repeated_prompt_are_whole_blocks(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    prompt = [2000 + index for index in range(40)]
    # Two decode ranks have a cache each: by the third call one has seen the prompt before.
    cached = [
        complete(
            client, server, prompt=prompt, max_tokens=2
        ).usage.prompt_tokens_details.cached_tokens  # type: ignore[attr-defined]
        for _ in range(3)
    ]
    assert cached[0] == 0
    assert cached[-1] == 32


def test_bad_ids_are_refused_while_another_call_streams_on(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    chunks = complete(client, server, prompt="plain", stream=True)
    bad: list[tuple[dict, str]] = [
        ({"extra_body": {"stop_token_ids": [4096 + 5]}}, "stop_token_ids"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
    ]
    for fields, param in bad:
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, server, prompt="plain", **fields)
        assert caught.value.param is not None
        assert caught.value.param.startswith(param)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)  # type: ignore[attr-defined]
    assert text == TEXTS["plain"]


def test_what_cannot_be_is_refused_in_openais_shape(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        complete(client, server, model="no-such-model", prompt="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        complete(client, server, prompt=[300] * 9000)
    assert too_long.value.code == "context_length_exceeded"
    answer = httpx.post(f"{server.url}/v1/completions", content=b"{not json")
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_several_choices_come_each_whole(client: openai.OpenAI, server: ServerProcess) -> None:
    answer = complete(client, server, prompt="plain", n=3)
    assert [choice.text for choice in answer.choices] == [TEXTS["plain"]] * 3  # type: ignore[attr-defined]


def test_a_stopped_rank_turns_ready_red_until_it_goes_on(server: ServerProcess) -> None:
    rank = server.ranks()[0]
    assert httpx.get(f"{server.url}/ready").status_code == 200
    rank.send_signal(signal.SIGSTOP)
    try:
        assert poll_ready(server, 503)
        assert httpx.get(f"{server.url}/health").status_code == 200
    finally:
        rank.send_signal(signal.SIGCONT)
    assert poll_ready(server, 200)


def poll_ready(server: ServerProcess, status: int) -> bool:
    """Ask until ``/ready`` answers ``status``, or half a minute has passed."""
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        if httpx.get(f"{server.url}/ready").status_code == status:
            return True
    return False


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"tokens": [300, 301]}')
    with running_server(f"replay:{path}") as running:
        assert len(running.ranks()) == 1
        assert running.stop() == 130


def test_a_killed_rank_is_replaced_and_the_server_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"tokens": [300, 301]}')
    with running_server(f"replay:{path}", *DISAGGREGATED) as running:
        killed = running.ranks()[0]
        killed.send_signal(signal.SIGKILL)
        assert poll_ready(running, 503)
        assert poll_ready(running, 200)
        assert len(running.ranks()) == 4
        assert killed not in running.ranks()
        assert running.stop() == 130
    assert any("prefill0.0" in line for line in running.lines)
