"""A client that streams answers at little cost, since it shares its cores with the server.

It speaks just enough HTTP: one request at a time on a connection that is kept, and of the answer
it looks for the status, the beginning of each event, and the end. Nothing is decoded.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from headrace.bench.workload import LoadRequest
from headrace.core.errors import ConfigError

_STATUS = b"HTTP/1.1 200"
_EVENT = b"data: {"
_ERROR = b'data: {"error"'
_END = b"data: [DONE]"
_TAIL = len(_ERROR) - 1
# Enough of the end of an answer to hold the word about its tokens.
_LAST = 512
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One request as its client saw it.

    Attributes:
        sent_s: When it was sent, on the loop's clock [s].
        first_s: When its first token came; None if none did [s].
        last_s: When its last token came [s].
        num_tokens: Tokens that came.
        gaps_s: Time between one read with tokens and the next, once for the first token of the
            read and zero for the others, from the second token on [s].
        error: Why it did not end well; empty if it did.
    """

    sent_s: float
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to the first token [s]; of an answer that has one."""
        assert self.first_s is not None
        return self.first_s - self.sent_s

    @property
    def took_s(self) -> float:
        """Time to the last token [s]."""
        return self.last_s - self.sent_s


class _Connection(asyncio.Protocol):
    """One connection; ``ask`` is awaited by one caller at a time."""

    def __init__(self) -> None:
        self.is_open = True
        self._transport: asyncio.Transport | None = None
        self._outcome: Outcome | None = None
        self._ended: asyncio.Future[None] | None = None
        self._tail = self._before = b""
        self._is_refused: bool | None = None

    async def ask(self, request: bytes) -> Outcome:
        """Send a request and return how it went."""
        assert self._transport is not None
        self._outcome = Outcome(sent_s=time.perf_counter())
        self._tail = self._before = b""
        self._ended, self._is_refused = asyncio.get_running_loop().create_future(), None
        self._transport.write(request)
        await self._ended
        return self._outcome

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        # uvloop's transports are no subclass of it, though they are one in all but name.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self.is_open = False
        if self._outcome is not None and self._ended is not None and not self._ended.done():
            self._fail(str(error or "the server hung up"))

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        outcome = self._outcome
        if outcome is None or self._ended is None or self._ended.done():
            return
        seen = self._tail + data
        if self._is_refused is None and len(seen) > len(_STATUS):
            self._is_refused = not seen.startswith(_STATUS)
        if self._is_refused:
            self._take_error(seen)
            return
        # What the tail already held was counted with the read before.
        count = seen.count(_EVENT) - self._tail.count(_EVENT) - seen.count(_ERROR)
        if count > 0:
            self._take_tokens(outcome, count)
        if _ERROR in seen:
            self._take_error(seen)
            return
        if _END in seen:
            self._settle(outcome, self._before + data)
            self._ended.set_result(None)
        self._tail, self._before = seen[-_TAIL:], (self._before + data)[-_LAST:]

    def _take_tokens(self, outcome: Outcome, count: int) -> None:
        now_s = time.perf_counter()
        if outcome.first_s is None:
            outcome.first_s, extra = now_s, count - 1
        else:
            outcome.gaps_s.append(now_s - outcome.last_s)
            extra = count - 1
        outcome.gaps_s += [0.0] * extra
        outcome.last_s = now_s
        outcome.num_tokens += count

    @staticmethod
    def _settle(outcome: Outcome, last: bytes) -> None:
        """Take off the events that were no tokens, such as the one with the reason of the end."""
        told = _USAGE.search(last)
        surplus = outcome.num_tokens - int(told[1]) if told else 0
        if surplus > 0:
            outcome.num_tokens -= surplus
            del outcome.gaps_s[max(0, len(outcome.gaps_s) - surplus) :]

    def _take_error(self, seen: bytes) -> None:
        """Say what the server said; the rest of a long error does not matter."""
        text = seen.partition(b'"message":')[2].strip()[:200].decode(errors="replace")
        self._fail(text.strip('"') or seen[:60].decode(errors="replace"))
        self.is_open = False
        self.close()

    def _fail(self, error: str) -> None:
        assert self._outcome is not None
        assert self._ended is not None
        self._outcome.error = error
        self._outcome.last_s = time.perf_counter()
        self._ended.set_result(None)


class LoadClient:
    """Sends requests to one server, over as many connections as are needed at once.

    Args:
        url: The server's address, ``http://HOST:PORT``.
        model: The served model's name.
        api_key: Sent along unless empty.

    Raises:
        ConfigError: The address is not of that form.
    """

    def __init__(self, url: str, *, model: str, api_key: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ConfigError(f"--url {url!r}: expected http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port
        self._model = model
        self._key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._idle: list[_Connection] = []

    def encode(self, request: LoadRequest) -> bytes:
        """Return a request as it is sent; done before the load, not within."""
        body = json.dumps(
            {
                "model": self._model,
                "prompt": request.prompt_ids,
                "max_tokens": request.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                # Its last word says how many tokens came: not every event is one.
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{self._key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def ask(self, request: bytes) -> Outcome:
        """Send one encoded request and return how it went; never raises for a failed one."""
        connection = await self._take()
        if connection is None:
            now_s = time.perf_counter()
            return Outcome(sent_s=now_s, last_s=now_s, error="nobody answers")
        outcome = await connection.ask(request)
        if connection.is_open:
            self._idle.append(connection)
        return outcome

    def close(self) -> None:
        """Hang up all connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self._host, self._port)
        except OSError:
            return None
        return connection


async def closed_loop(
    client: LoadClient, requests: Sequence[bytes], *, concurrency: int
) -> list[Outcome]:
    """Keep so many requests in flight until all are done; return them in order of sending."""
    outcomes: list[Outcome] = []
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            outcomes.append(await client.ask(request))

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return sorted(outcomes, key=lambda outcome: outcome.sent_s)


async def open_loop(client: LoadClient, requests: Sequence[tuple[float, bytes]]) -> list[Outcome]:
    """Send each request at its time, whatever became of the others; return them in that order."""
    began_s = time.perf_counter()

    async def send(at_s: float, request: bytes) -> Outcome:
        await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
        return await client.ask(request)

    return await asyncio.gather(*(send(at_s, request) for at_s, request in requests))
