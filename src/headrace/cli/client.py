"""A small client of the OpenAI-compatible API, for the commands that talk to a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from headrace.core.errors import ConfigError, ReplicaError, RequestError
from headrace.core.requests import Ledger

Kind = TypeVar("Kind")

# A token may be long in coming (a queue, a long prompt); a server that is gone closes its socket.
CONNECT_S = 10.0
_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass(slots=True)
class Answer:
    """One streamed chat answer.

    Attributes:
        text: What was shown.
        finish_reason: Why it ended; empty while it streams.
        ledger: The request's ledger, where the server was asked for it.
    """

    text: str = ""
    finish_reason: str = ""
    ledger: Ledger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What is sent along with the messages of every turn.

    Attributes:
        model: The model's name at the server.
        fields: Further fields of the request body.
    """

    model: str
    fields: dict[str, Any] = field(default_factory=dict)


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    delta: _Delta
    finish_reason: str | None = None
    ledger: Ledger | None = None


class _Error(Struct):
    message: str = ""


class _Chunk(Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


class _Refusal(Struct):
    error: _Error


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class ChatClient:
    """Talks to one server. Made by ``chat_client``.

    Args:
        session: The connections, with the server's address as base.
        url: The server's address, for messages.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def model_name(self) -> str:
        """Return the name of the model that the server serves.

        Raises:
            ConfigError: Nobody answers there.
            RequestError: The server refused, for instance for want of a key.
        """
        async with self._open("GET", "/v1/models") as response:
            body = await response.read()
        models = _parse(body, _Models, self._url).data
        if not models:
            raise ConfigError(f"{self._url} serves no model")
        return models[0].id

    async def stream(
        self,
        messages: list[dict[str, str]],
        settings: ChatSettings,
        *,
        on_text: Callable[[str], None],
    ) -> Answer:
        """Send a conversation and hand on the answer's text as it comes.

        Args:
            messages: OpenAI's messages, the last one the user's.
            settings: Model and further fields.
            on_text: Called with each piece of text.

        Raises:
            ConfigError: Nobody answers there.
            RequestError: The server refused the request.
            ReplicaError: The answer broke off.
        """
        body = {**settings.fields, "model": settings.model, "messages": messages, "stream": True}
        answer = Answer()
        async with self._open("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.content:
                data = line.strip().removeprefix(_DATA)
                if data and data != _DONE:
                    self._take(data, answer, on_text)
        if not answer.finish_reason:
            raise ReplicaError(f"{self._url} closed the connection before the answer was over")
        return answer

    def _take(self, data: bytes, answer: Answer, on_text: Callable[[str], None]) -> None:
        chunk = _parse(data, _Chunk, self._url)
        if chunk.error is not None:
            raise ReplicaError(f"the answer broke off: {chunk.error.message}")
        for choice in chunk.choices:
            if choice.delta.content:
                answer.text += choice.delta.content
                on_text(choice.delta.content)
            answer.finish_reason = choice.finish_reason or answer.finish_reason
            answer.ledger = choice.ledger or answer.ledger

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, **arguments: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(method, path, **arguments) as response:
                if response.status != 200:
                    raise _refusal(response.status, await response.read(), self._url)
                yield response
        except aiohttp.ClientConnectorError as error:
            raise ConfigError(
                f"nobody answers at {self._url}: start a server with 'headrace serve', "
                f"or name another with --url"
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ReplicaError(f"{self._url}: the connection broke: {error}") from error


@asynccontextmanager
async def chat_client(url: str, *, api_key: str = "") -> AsyncIterator[ChatClient]:
    """Open connections to the server at ``url`` as long as the context lasts.

    Raises:
        ConfigError: Not an HTTP address.
    """
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url!r}: expected an address such as http://127.0.0.1:8000")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    async with aiohttp.ClientSession(base, headers=headers, timeout=timeout) as session:
        yield ChatClient(session, base)


def _refusal(status: int, body: bytes, url: str) -> RequestError | ReplicaError:
    try:
        message = msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.MsgspecError:
        return ReplicaError(f"{url} answered with status {status}: is it a headrace server?")
    if status >= 500:
        return ReplicaError(f"the server could not answer: {message}")
    return RequestError(f"the server refused: {message}", status=status)


def _parse(body: bytes, kind: type[Kind], url: str) -> Kind:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ReplicaError(f"{url} sent what no headrace server sends: {error}") from error
