"""Faults that users of other servers met, as promises of the whole server on scripted tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headrace.models.checkpoint.folder import read_config
from headrace.models.embedded import embedded_folder
from headrace.text.tokenizer import Tokenizer
from tests.support.deserters import desert_all
from tests.support.metrics_page import read_metrics, wait_metrics
from tests.support.server_process import ServerProcess, running_server

DISAGGREGATED = ("--prefill", "tp=2,ep=2", "--decode", "dp=2,ep=2")
SMALL = ("--set", "engine.kv_cache_mib=8", "--set", "serving.is_metrics_open=true")
# A letter and its mark, a flag, a family: scalars that join on the screen.
JOINING = "e\u0301x \U0001f1ef\U0001f1f5 \U0001f469\u200d\U0001f467 a"


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """Return one token per byte."""
    by_bytes = {tokenizer.token_bytes(index): index for index in range(tokenizer.vocab_size)}
    return [by_bytes[bytes([byte])] for byte in data]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.open(embedded_folder())
    end = [tokenizer.token_id("<|im_end|>")]
    lines = [
        {
            "match": tokenizer.encode("joining"),
            "tokens": byte_ids(tokenizer, JOINING.encode()) + end,
        },
        {"tokens": byte_ids(tokenizer, b"abcdefghij" * 30)},
    ]
    path = tmp_path_factory.mktemp("replay") / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="module", params=["split", "mono"])
def server(script: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    flags = DISAGGREGATED if request.param == "split" else ()
    with running_server(f"replay:{script}", *flags, *SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def split(script: Path) -> Iterator[ServerProcess]:
    with running_server(f"replay:{script}", *DISAGGREGATED, *SMALL) as running:
        yield running


def post(server: ServerProcess, **fields: Any) -> httpx.Response:
    body = {"model": server.model, "max_tokens": 100, "temperature": 0.0} | fields
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60.0)


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60.0)


def test_each_scalar_comes_once_when_marks_and_flags_join(server: ServerProcess) -> None:
    with client_of(server) as client:
        chunks = client.completions.create(
            model=server.model, prompt="joining", stream=True, max_tokens=100
        )
        parts = [choice.text for chunk in chunks for choice in chunk.choices if choice.text]
    assert parts == list(JOINING)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_alternatives_are_raw_bytes_and_never_empty(server: ServerProcess, is_stream: bool) -> None:
    with client_of(server) as client:
        fields: dict[str, Any] = {
            "model": server.model,
            "messages": [{"role": "user", "content": "say"}],
            "logprobs": True,
            "top_logprobs": 5,
            "max_tokens": 8,
        }
        if is_stream:
            chunks = client.chat.completions.create(stream=True, **fields)
            logs = [c.logprobs for chunk in chunks for c in chunk.choices if c.logprobs]
            entries = [entry for log in logs for entry in log.content or ()]
        else:
            answer = client.chat.completions.create(**fields)
            assert answer.choices[0].logprobs is not None
            entries = answer.choices[0].logprobs.content or []
    assert len(entries) == 8
    for entry in entries:
        assert [entry.bytes, *(one.bytes for one in entry.top_logprobs)].count(None) == 0
        assert bytes(entry.bytes or ()).decode() == entry.token
        assert len(entry.top_logprobs) == 5
        assert all(one.token and one.bytes for one in entry.top_logprobs)


def test_echo_with_logprobs_is_refused_by_name_wherever_prompts_are_computed(
    server: ServerProcess,
) -> None:
    answer = post(server, prompt="joining", echo=True, logprobs=1)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "logprobs")
    assert "together with echo" in error["message"]
    assert post(server, prompt="joining", echo=True).json()["choices"][0]["text"] == (
        "joining" + JOINING
    )


def test_a_prompt_over_any_replicas_limit_is_refused_and_leaves_nothing(
    server: ServerProcess,
) -> None:
    before = read_metrics(server.url)
    for prompt in ([300] * 9000, "word " * 200_000):
        answer = post(server, prompt=prompt, stream=True)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert read_metrics(server.url).total("output_tokens_total") == before.total(
        "output_tokens_total"
    )
    assert wait_metrics(server.url, lambda page: page.is_settled).faults == []


def test_a_prompt_that_only_the_prefiller_cannot_hold_is_refused_and_leaves_nothing(
    script: Path,
) -> None:
    layers = read_config(embedded_folder()).cache_schema("float32")
    token_bytes = sum(2 * layer.num_kv_heads * layer.token_bytes for layer in layers)
    decode_tokens, prefill_tokens = (8 << 20) // token_bytes, (1 << 20) // (token_bytes // 2)
    prompt = [300] * (prefill_tokens + 20)
    assert len(prompt) + 100 < decode_tokens, "the decoder could hold it"
    roles = ("--prefill", "tp=2,ep=2,kv_cache_mib=1", "--decode", "dp=2,ep=2")
    with running_server(f"replay:{script}", *roles, *SMALL) as running:
        for is_stream in (False, True):
            answer = post(running, prompt=prompt, stream=is_stream)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "prompt")
            assert error["code"] == "context_length_exceeded"
        page = wait_metrics(running.url, lambda page: page.is_settled)
        assert page.faults == []
        assert page.total("output_tokens_total") == 0
        fitting = post(running, prompt=prompt[: prefill_tokens - 20], max_tokens=4)
        assert fitting.json()["usage"]["completion_tokens"] == 4
        assert wait_metrics(running.url, lambda page: page.is_settled).faults == []


def test_a_deserted_call_is_over_at_once(split: ServerProcess) -> None:
    body = {"model": split.model, "prompt": "say", "max_tokens": 2000, "ignore_eos": True}
    aborts = read_metrics(split.url).total("aborts_total")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{split.url}/v1/completions", json=body, timeout=httpx.Timeout(60.0, read=0.05))
    page = wait_metrics(
        split.url, lambda page: page.is_settled and page.total("aborts_total") > aborts
    )
    assert page.faults == []
    assert page.total("aborts_total") == aborts + 1


def test_usage_comes_in_a_chunk_of_its_own_at_the_end(split: ServerProcess) -> None:
    with client_of(split) as client:
        *_, last = client.chat.completions.create(
            model=split.model,
            messages=[{"role": "user", "content": "say"}],
            max_tokens=7,
            stream=True,
            stream_options={"include_usage": True},
        )
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 7


def check_rounds(server: ServerProcess, *, rounds: int, count: int) -> None:
    for number in range(rounds):
        before = read_metrics(server.url)
        desert_all(server.url, count=count, prompt_tokens=1500, seed=number)
        page = wait_metrics(server.url, lambda page: page.is_settled)
        assert page.faults == [], f"round {number}"
        deserted = page.total("aborts_total") - before.total("aborts_total")
        assert deserted > count / 2, "most left before the end, or this shows nothing"
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert post(server, prompt="joining").json()["choices"][0]["text"] == JOINING


def test_cancelled_long_prompts_leave_every_pool_as_it_was(split: ServerProcess) -> None:
    check_rounds(split, rounds=2, count=20)


@pytest.mark.slow
def test_five_rounds_of_two_hundred_cancelled_long_prompts_leave_nothing(
    split: ServerProcess,
) -> None:
    check_rounds(split, rounds=5, count=200)
