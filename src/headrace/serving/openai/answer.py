"""The HTTP answer to a generation, streamed or whole.

It ends what it started when the client leaves.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.core.errors import RequestError
from headrace.core.messages import Output
from headrace.core.requests import FinishReason
from headrace.serving.openai.chunks import DONE, ChunkWriter, event
from headrace.serving.openai.errors import error_body, error_response, json_response
from headrace.serving.openai.inbox import Inbox
from headrace.serving.openai.metrics import ServingMetrics
from headrace.serving.openai.options import AnswerOptions
from headrace.serving.openai.ports import Tokenizer
from headrace.serving.openai.tracing import RequestTrace
from headrace.serving.openai.usage import Usage
from headrace.serving.openai.whole import WholeAnswer

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies that gather small writes would turn a stream into a pause.
    (b"x-accel-buffering", b"no"),
]
_FAILED = (FinishReason.ERROR, FinishReason.ABORT)


class Answer(Response):
    """Reads an inbox until every choice has ended and writes what comes.

    A stream's status line waits for the first output, so that a failure before it is an HTTP
    error. The connection is watched all the while: a client that leaves, streaming or not, ends
    the reading at once, and closing the inbox aborts what runs.

    Args:
        inbox: Holds the submitted calls; closed in the end.
        options: What the client asked for.
        tokenizer: Gives the bytes of tokens, for log-probabilities.
        metrics: Counts how sequences ended.
        trace: The request's span; ended with the answer.
    """

    def __init__(
        self,
        inbox: Inbox,
        options: AnswerOptions,
        *,
        tokenizer: Tokenizer,
        metrics: ServingMetrics,
        trace: RequestTrace,
    ) -> None:
        super().__init__()
        self._inbox = inbox
        self._options = options
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._trace = trace
        self._usage = Usage(
            options.prompt_tokens,
            choices_per_prompt=options.choices_per_prompt,
            has_ledger=options.return_ledger,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        try:
            if self._options.is_stream:
                await self._stream(scope, receive, send)
            else:
                await self._whole(scope, receive, send)
        finally:
            watcher.cancel()
            self._inbox.close()
            self._trace.end(is_client_gone=self._inbox.is_hung_up)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._inbox.hang_up()

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = WholeAnswer(self._options, self._tokenizer)
        async for batch in self._inbox:
            for index, output in batch:
                if self._count(index, output):
                    await error_response(self._error(output))(scope, receive, send)
                    return
                answer.add(index, output)
        if not self._inbox.is_hung_up:
            await json_response(answer.body(self._usage))(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = ChunkWriter(self._options, self._tokenizer)
        is_started = False
        async for batch in self._inbox:
            # Everything that came in one write: a busy loop sends fewer, larger pieces.
            parts, failed = [], None
            for index, output in batch:
                if self._count(index, output):
                    failed = output
                    break
                parts.append(writer.write(index, output))
            if failed is not None and not (is_started or parts):
                await error_response(self._error(failed))(scope, receive, send)
                return
            if not is_started:
                is_started = True
                await send(
                    {"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS]}
                )
            if failed is not None:
                parts.append(self._error_event(failed))
            data = b"".join(parts)
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if failed is not None:
                await _finish(send, DONE)
                return
        if not self._inbox.is_hung_up:
            has_usage = self._options.include_usage
            await _finish(send, writer.usage(self._usage) + DONE if has_usage else DONE)

    def _count(self, index: int, output: Output) -> bool:
        """Add ``output`` to usage and metrics; return whether it says that its choice failed."""
        self._usage.add(index, output)
        if output.finish_reason is None:
            return False
        self._metrics.note_finish(output.finish_reason)
        self._trace.note_end(index, output)
        return output.finish_reason in _FAILED

    def _error(self, output: Output) -> RequestError:
        if self._inbox.is_unavailable:
            return RequestError(output.error, status=503, code="unavailable")
        return RequestError(
            output.error or f"the engine ended this request: {output.finish_reason}",
            status=500,
            code="engine_error",
        )

    def _error_event(self, output: Output) -> bytes:
        error = self._error(output)
        return event(error_body(str(error), status=error.status, code=error.code))


async def _finish(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": False})
