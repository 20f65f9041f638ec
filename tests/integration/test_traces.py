"""A request to a real deployment is one trace that names its ranks, tokens and bytes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import httpx
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.otlp_collector import running_collector
from tests.support.server_process import running_server

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT = [300] * 40


def attributes(span: Span) -> dict[str, object]:
    """Return a span's attributes as plain values."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


def test_a_split_request_is_one_trace_from_the_client_to_the_last_token(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"tokens": [300, 301, 302, 303, 304]}')
    with running_collector() as collector:
        settings = ("--set", f"serving.otlp_endpoint={collector.url}")
        split = ("--prefill", "tp=2", "--decode", "dp=1", "--set", "engine.kv_cache_mib=8")
        with running_server(f"replay:{script}", *split, *settings) as server:
            body = {"model": server.model, "prompt": PROMPT, "max_tokens": 5, "return_ledger": True}
            answer = httpx.post(
                f"{server.url}/v1/completions",
                json=body,
                headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
                timeout=60.0,
            )
            assert answer.status_code == 200
        # The server has ended: what it had to say has been sent.
        spans = {span.name: span for span in collector.spans()}
    ledger = answer.json()["choices"][0]["ledger"]
    request = spans.pop("/v1/completions")
    assert {span.trace_id.hex() for span in (request, *spans.values())} == {TRACE}
    assert request.parent_span_id.hex() == PARENT
    assert {span.parent_span_id for span in spans.values()} == {request.span_id}
    assert set(spans) == {"prepare", "queue", "prefill", "transfer", "decode"}
    assert attributes(spans["prefill"])["headrace.prefill.replica"] == "prefill0"
    assert attributes(spans["transfer"])["headrace.transfer.bytes"] == ledger["bytes_received"] > 0
    assert attributes(spans["decode"])["headrace.decode.rank"] == "decode0.0"
    assert attributes(spans["decode"])["headrace.tokens.output"] == 5
    assert attributes(request)["gen_ai.usage.input_tokens"] == len(PROMPT)
    for before, after in pairwise(("queue", "prefill", "transfer", "decode")):
        assert spans[before].end_time_unix_nano == spans[after].start_time_unix_nano
    assert request.start_time_unix_nano <= spans["prepare"].start_time_unix_nano
    assert spans["decode"].end_time_unix_nano <= request.end_time_unix_nano
