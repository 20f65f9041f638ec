"""One request is one trace, whose parts are the ledger's and lie end to end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from headrace.core.messages import Output, Submit
from headrace.core.requests import FinishReason, Ledger
from headrace.serving.openai.tracing import NS_PER_S, RequestTrace, stages
from tests.support.serving_fakes import make_stack, one_then_nothing, say, served

PAGE = Path(__file__).parents[4] / "docs" / "tracing.md"
CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LEDGER = Ledger(
    queue_s=0.5,
    prefill_s=2.0,
    transfer_s=0.25,
    decode_s=4.0,
    transferred_tokens=39,
    output_tokens=3,
    bytes_received=640,
    num_sessions=1,
    prefill_replica="prefill0",
    decode_replica="decode0",
    decode_rank=1,
)


class Recorder:
    """Keeps ended spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = provider.get_tracer("test")

    def spans(self) -> dict[str, ReadableSpan]:
        spans = self.exporter.get_finished_spans()
        named = {span.name: span for span in spans}
        assert len(named) == len(spans), "a name came twice"
        return named


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def last(ledger: Ledger | None, error: str = "") -> Output:
    reason = FinishReason.ERROR if error else FinishReason.STOP
    return Output(
        request_id="r", choice=0, token_ids=[], finish_reason=reason, ledger=ledger, error=error
    )


def trace_at(tracer: Tracer, *seconds: float, **headers: str) -> RequestTrace:
    """Return a trace that begins at second 10 and then reads these times."""
    times = iter(round(second * NS_PER_S) for second in seconds)
    return RequestTrace(
        tracer, "/v1/x", headers, arrived_ns=10 * NS_PER_S, now_ns=lambda: next(times)
    )


def test_the_parts_lie_end_to_end_from_submission_as_long_as_the_ledger_says(
    recorder: Recorder,
) -> None:
    trace = trace_at(recorder.tracer, 11.0, 17.9, 18.0)
    trace.note_submitted(answer_id="a", model="m", prompt_tokens=40)
    trace.note_end(0, last(LEDGER))
    trace.end()
    times = {n: (s.start_time, s.end_time) for n, s in recorder.spans().items()}
    assert {n: (a / NS_PER_S, b / NS_PER_S) for n, (a, b) in times.items() if a and b} == {
        "prepare": (10.0, 11.0),
        "queue": (11.0, 11.5),
        "prefill": (11.5, 13.5),
        "transfer": (13.5, 13.75),
        "decode": (13.75, 17.75),
        "/v1/x": (10.0, 18.0),
    }


def test_spans_name_ranks_tokens_and_bytes(recorder: Recorder) -> None:
    trace = trace_at(recorder.tracer, 11.0, 17.9, 18.0)
    trace.note_submitted(answer_id="a", model="m", prompt_tokens=40)
    trace.note_end(2, last(LEDGER))
    trace.end()
    found = {name: dict(span.attributes or {}) for name, span in recorder.spans().items()}
    assert found["prefill"]["headrace.prefill.replica"] == "prefill0"
    assert found["transfer"]["headrace.transfer.bytes"] == 640
    assert found["transfer"]["headrace.transfer.exposed_s"] == 0.25
    assert found["transfer"]["headrace.tokens.transferred"] == 39
    assert found["decode"]["headrace.decode.rank"] == "decode0.1"
    assert found["decode"]["headrace.tokens.output"] == 3
    assert {found[name]["headrace.choice"] for name in ("queue", "prefill", "decode")} == {2}
    assert found["/v1/x"]["gen_ai.usage.input_tokens"] == 40
    assert found["/v1/x"]["gen_ai.usage.output_tokens"] == 3


def test_no_part_ends_after_its_choice(recorder: Recorder) -> None:
    trace = trace_at(recorder.tracer, 11.0, 13.0, 13.5)
    trace.note_submitted(answer_id="a", model="m", prompt_tokens=40)
    trace.note_end(0, last(LEDGER))
    trace.end()
    ends = {name: span.end_time or 0 for name, span in recorder.spans().items()}
    assert (ends["queue"], ends["prefill"]) == (11.5 * NS_PER_S, 13.0 * NS_PER_S)
    assert ends["transfer"] == ends["decode"] == 13.0 * NS_PER_S


def names(ledger: Ledger) -> list[str]:
    return [stage.name for stage in stages(ledger)]


def test_what_a_choice_did_not_have_is_no_span() -> None:
    assert names(LEDGER) == ["queue", "prefill", "transfer", "decode"]
    assert names(Ledger(cached_tokens=9)) == ["queue", "decode"]
    assert names(Ledger(prefill_s=1.0, computed_tokens=9)) == ["queue", "prefill", "decode"]


def test_the_clients_span_is_the_parent_and_nonsense_is_ignored(recorder: Recorder) -> None:
    trace_at(recorder.tracer, 11.0, traceparent=CLIENT).end()
    (span,) = recorder.spans().values()
    assert span.parent is not None
    assert format(span.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert (format(span.parent.span_id, "016x"), span.kind) == (
        "b7ad6b7169203331",
        SpanKind.SERVER,
    )
    recorder.exporter.clear()
    trace_at(recorder.tracer, 11.0, traceparent="00-nonsense").end()
    (span,) = recorder.spans().values()
    assert span.parent is None


def test_an_error_and_a_refusal_are_the_spans_status(recorder: Recorder) -> None:
    trace = trace_at(recorder.tracer, 11.0)
    trace.note_end(0, last(None, "decode0.1 died"))
    trace.end()
    (span,) = recorder.spans().values()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "decode0.1 died"
    recorder.exporter.clear()
    trace_at(recorder.tracer, 11.0).refuse("too many requests")
    (span,) = recorder.spans().values()
    assert span.status.description == "too many requests"


def test_a_request_ends_once(recorder: Recorder) -> None:
    trace = trace_at(recorder.tracer, 11.0)
    trace.end()
    trace.end()
    trace.note_end(0, last(LEDGER))
    assert list(recorder.spans()) == ["/v1/x"]


async def test_a_chat_over_http_is_one_trace(recorder: Recorder) -> None:
    def script(submit: Submit) -> Iterator[Output]:
        return say(submit, "abc", num_sessions=1, prefill_replica="prefill0")

    stack = make_stack(script, tracer=recorder.tracer)
    stack.client.headers["traceparent"] = CLIENT
    answer = await stack.chat()
    spans = recorder.spans()
    request = spans.pop("/v1/chat/completions")
    assert set(spans) == {"prepare", "queue", "prefill", "transfer", "decode"}
    assert {span.parent.span_id for span in spans.values() if span.parent} == {
        request.context.span_id
    }
    assert {span.context.trace_id for span in spans.values()} == {
        int("0af7651916cd43dd8448eb211c80319c", 16)
    }
    assert request.attributes is not None
    assert request.attributes["gen_ai.response.id"] == answer.json()["id"]
    assert request.status.status_code is StatusCode.UNSET


async def test_choices_of_a_request_have_their_parts_in_the_same_trace(recorder: Recorder) -> None:
    stack = make_stack(tracer=recorder.tracer)
    await stack.chat(n=3)
    decodes = [s for s in recorder.exporter.get_finished_spans() if s.name == "decode"]
    assert sorted(s.attributes["headrace.choice"] for s in decodes if s.attributes) == [0, 1, 2]


async def test_a_refused_request_is_a_span_with_the_reason(recorder: Recorder) -> None:
    stack = make_stack(tracer=recorder.tracer)
    assert (await stack.chat(temperature=-1)).status_code == 400
    (span,) = recorder.spans().values()
    assert "temperature" in (span.status.description or "")


async def test_a_client_that_leaves_ends_the_span_and_says_so(recorder: Recorder) -> None:
    async with served(one_then_nothing, tracer=recorder.tracer) as stack:
        chat = asyncio.create_task(stack.chat(max_tokens=9))
        await stack.engine.until(lambda: bool(stack.engine.submits))
        chat.cancel()
        async with asyncio.timeout(10):
            while "/v1/chat/completions" not in recorder.spans():
                await asyncio.sleep(0)
    request = recorder.spans()["/v1/chat/completions"]
    assert request.attributes is not None
    assert request.attributes["headrace.client_left"] is True


def test_the_page_names_every_span_and_every_attribute(recorder: Recorder) -> None:
    trace = trace_at(recorder.tracer, 11.0, 17.9, 18.0)
    trace.note_submitted(answer_id="a", model="m", prompt_tokens=40)
    trace.note_end(0, last(LEDGER))
    trace.end(is_client_gone=True)
    page, spans = PAGE.read_text(), recorder.spans()
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)$", page, re.MULTILINE))
    assert rows.keys() == spans.keys() - {"/v1/x"}
    for name, row in rows.items():
        assert set(re.findall(r"`([\w.]+)`", row)) == set(spans[name].attributes or {})
    for attribute in spans["/v1/x"].attributes or {}:
        assert f"`{attribute}`" in page
