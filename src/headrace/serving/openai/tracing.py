"""One trace for each HTTP request, told at its end from the ledgers of its choices.

The edge alone makes spans. A choice's ledger says how long it stood in line, was computed, was
waited for and decoded, in this order and without gaps, so the spans are laid end to end from the
moment of submission on the edge's own clock: no two clocks are ever compared. Without the library's
SDK every call here ends in its no-op.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from opentelemetry import propagate
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from headrace.core.messages import Output
from headrace.core.requests import FinishReason, Ledger

NS_PER_S = 1_000_000_000


class Stage(Struct, frozen=True):
    """One part of a choice's life, as a span shows it."""

    name: str
    seconds: float
    attributes: dict[str, str | int | float]


class RequestTrace:
    """The span of one HTTP request. Used from the event loop's thread.

    Args:
        tracer: Makes spans; the library's no-op where nobody listens.
        name: Route, and name of the span.
        headers: The request's headers, with lower-case names: ``traceparent`` makes the client's
            span the parent.
        arrived_ns: When the request came, as ``time.time_ns`` has it.
        now_ns: The edge's wall clock [ns].
    """

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        headers: Mapping[str, str],
        *,
        arrived_ns: int,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._tracer = tracer
        self._now_ns = now_ns
        self._arrived_ns = self._submitted_ns = arrived_ns
        self._num_output_tokens = 0
        self._error = ""
        self._span: Span = tracer.start_span(
            name, propagate.extract(headers), SpanKind.SERVER, start_time=arrived_ns
        )
        self._is_on = self._span.is_recording()

    def note_submitted(self, *, answer_id: str, model: str, prompt_tokens: int) -> None:
        """The request was checked, tokenized and sent to its decode rank."""
        if not self._is_on:
            return
        self._submitted_ns = self._now_ns()
        self._span.set_attributes(
            {
                "gen_ai.response.id": answer_id,
                "gen_ai.request.model": model,
                "gen_ai.usage.input_tokens": prompt_tokens,
            }
        )
        self._child("prepare", self._arrived_ns, self._submitted_ns, {})

    def note_end(self, index: int, output: Output) -> None:
        """Choice ``index`` ended with ``output``: lay its ledger out as spans."""
        if not self._is_on:
            return
        if output.finish_reason is FinishReason.ERROR:
            self._error = output.error or "the engine gave the request up"
        if output.ledger is None:
            return
        self._num_output_tokens += output.ledger.output_tokens
        start_ns, now_ns = self._submitted_ns, self._now_ns()
        for stage in stages(output.ledger):
            # The prefiller's last step may end after its last byte came: never past the end itself.
            end_ns = min(start_ns + round(stage.seconds * NS_PER_S), now_ns)
            attributes = {"headrace.choice": index, **stage.attributes}
            self._child(stage.name, start_ns, end_ns, attributes)
            start_ns = end_ns

    def refuse(self, reason: str) -> None:
        """End the span of a request that was not answered."""
        self._error = reason
        self.end()

    def end(self, *, is_client_gone: bool = False) -> None:
        """End the request's span; nothing may follow."""
        if not self._is_on:
            return
        self._is_on = False
        self._span.set_attribute("gen_ai.usage.output_tokens", self._num_output_tokens)
        if is_client_gone:
            self._span.set_attribute("headrace.client_left", True)
        if self._error:
            self._span.set_status(Status(StatusCode.ERROR, self._error))
        self._span.end(self._now_ns())

    def _child(
        self, name: str, start_ns: int, end_ns: int, attributes: dict[str, str | int | float]
    ) -> None:
        span = self._tracer.start_span(
            name, set_span_in_context(self._span), attributes=attributes, start_time=start_ns
        )
        span.end(end_ns)


def stages(ledger: Ledger) -> Iterator[Stage]:
    """Yield the parts of a choice's life in order, without those that it did not have."""
    yield Stage("queue", ledger.queue_s, {})
    if ledger.prefill_s or ledger.prefill_replica:
        yield Stage(
            "prefill",
            ledger.prefill_s,
            {
                "headrace.prefill.replica": ledger.prefill_replica or ledger.decode_replica,
                "headrace.tokens.cached": ledger.cached_tokens,
                "headrace.tokens.prefiller_cached": ledger.prefiller_cached_tokens,
                "headrace.tokens.computed": ledger.computed_tokens,
                "headrace.tokens.recomputed": ledger.recomputed_tokens,
            },
        )
    if ledger.num_sessions:
        yield Stage(
            "transfer",
            ledger.transfer_s,
            {
                "headrace.transfer.exposed_s": ledger.transfer_s,
                "headrace.transfer.bytes": ledger.bytes_received,
                "headrace.transfer.sessions": ledger.num_sessions,
                "headrace.tokens.transferred": ledger.transferred_tokens,
            },
        )
    yield Stage(
        "decode",
        ledger.decode_s,
        {
            "headrace.decode.rank": f"{ledger.decode_replica}.{ledger.decode_rank}",
            "headrace.tokens.output": ledger.output_tokens,
            "headrace.tokens.reasoning": ledger.reasoning_tokens,
            "headrace.preemptions": ledger.num_preemptions,
            "headrace.retries": ledger.num_retries,
        },
    )
