"""Server-sent events of a stream, built from constant parts: no object is made per token.

Every event but the text is known when a stream begins, so an event is a join of bytes with one
JSON string inside.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.messages import Output
from headrace.serving.openai.logprobs import chat_logprobs, text_logprobs, total_chars
from headrace.serving.openai.options import AnswerOptions
from headrace.serving.openai.ports import Tokenizer
from headrace.serving.openai.usage import Usage

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(body: Any) -> bytes:
    """Return one event that carries ``body`` as JSON."""
    return b"data: " + _encode(body) + b"\n\n"


class ChunkWriter:
    """Turns the outputs of one request into events.

    Args:
        options: What the client asked for.
        tokenizer: Gives the bytes of tokens, for log-probabilities.
    """

    def __init__(self, options: AnswerOptions, tokenizer: Tokenizer) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._started: set[int] = set()
        self._offsets: dict[int, int] = {}
        kind = "chat.completion.chunk" if options.is_chat else "text_completion"
        head = {
            "id": options.answer_id,
            "object": kind,
            "created": options.created_s,
            "model": options.model,
        }
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._open = b',"delta":{"content":' if options.is_chat else b',"text":'
        self._close = b"}" if options.is_chat else b""
        self._is_plain = not (options.has_logprobs or options.return_token_ids)

    def write(self, index: int, output: Output) -> bytes:
        """Return the events of one output: maybe the first of its choice, text, the last."""
        parts = []
        if index not in self._started:
            self._started.add(index)
            parts.append(self._first(index))
        if output.text or (output.token_ids and not self._is_plain):
            parts.append(self._text(index, output))
        if output.finish_reason is not None:
            parts.append(self._last(index, output))
        return b"".join(parts)

    def usage(self, usage: Usage) -> bytes:
        """Return the event after the last choice: no choices, and the usage."""
        return self._head + b'],"usage":' + _encode(usage.to_dict()) + b"}\n\n"

    def _first(self, index: int) -> bytes:
        if self._options.is_chat:
            delta = b',"delta":{"role":"assistant","content":""}'
            return self._event(index, delta, b',"logprobs":null,"finish_reason":null')
        if not self._options.echo:
            return b""
        text = b',"text":' + _encode(self._options.echo[index])
        return self._event(index, text, b',"logprobs":null,"finish_reason":null')

    def _text(self, index: int, output: Output) -> bytes:
        body = self._open + _encode(output.text) + self._close
        if self._is_plain:
            return self._event(index, body, b',"logprobs":null,"finish_reason":null')
        extra = b',"logprobs":' + _encode(self._logprobs(index, output))
        if self._options.return_token_ids:
            extra += b',"token_ids":' + _encode(output.token_ids)
        return self._event(index, body, extra + b',"finish_reason":null')

    def _last(self, index: int, output: Output) -> bytes:
        body = b',"delta":{}' if self._options.is_chat else b',"text":""'
        extra = b',"logprobs":null,"finish_reason":' + _encode(output.finish_reason)
        if self._options.return_ledger:
            extra += b',"ledger":' + _encode(output.ledger)
        return self._event(index, body, extra)

    def _event(self, index: int, body: bytes, extra: bytes) -> bytes:
        return b'%b{"index":%d%b%b}%b' % (self._head, index, body, extra, self._tail)

    def _logprobs(self, index: int, output: Output) -> dict[str, Any] | None:
        tokens = output.logprobs
        if not self._options.has_logprobs or tokens is None:
            return None
        if self._options.is_chat:
            return chat_logprobs(tokens, self._tokenizer)
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + total_chars(tokens, self._tokenizer)
        return text_logprobs(tokens, self._tokenizer, offset=offset)
