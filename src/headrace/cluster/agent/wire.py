"""One keyed connection between a supervisor and an agent.

Both ends send a fresh nonce and prove that they hold the secret over both nonces. From then on each
frame carries a code under a key of this connection and direction, over a running number: a frame
that was changed, left out, repeated, or recorded on another connection ends the connection.

    hello  magic(4) version(2) nonce(32)      supervisor to agent
    hello  the same, and proof(32)            agent to supervisor
    proof  (32)                               supervisor to agent
    frame  length(4) code(16) payload         then, both ways
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import struct
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from headrace.cluster.agent.keys import derive
from headrace.cluster.agent.orders import AnyOrder, AnyReport
from headrace.core.errors import ConfigError, ProtocolError

WIRE_VERSION = 1
MAX_FRAME_BYTES = 1 << 20
# What may wait for a peer that does not read; lines of output beyond it are dropped.
MAX_WAITING_BYTES = 4 << 20
_FLUSH_S = 1.0
_MAGIC = b"HRAG"
_HELLO = struct.Struct("!4sH32s")
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_CODE_BYTES = 16
_PROOF_BYTES = 32

T = TypeVar("T")


class WrongKeyError(ConfigError):
    """The other end does not hold our secret."""


@dataclass(slots=True)
class _Side:
    """One direction: its key and how many frames went."""

    key: bytes
    number: int = 0

    def code(self, payload: bytes) -> bytes:
        """Return the code of the next frame of this direction."""
        data = _NUMBER.pack(self.number) + payload
        self.number += 1
        return hashlib.blake2b(data, key=self.key, digest_size=_CODE_BYTES).digest()


class Wire(Generic[T]):
    """A connection after its handshake; used from one event loop.

    Args:
        reader: Its incoming half.
        writer: Its outgoing half; closed by ``close``.
        outgoing: Key of what we send.
        incoming: Key of what comes.
        kind: Union of the messages that may come.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        outgoing: bytes,
        incoming: bytes,
        kind: Any,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._outgoing = _Side(outgoing)
        self._incoming = _Side(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(kind)

    @property
    def is_crowded(self) -> bool:
        """Whether the peer leaves so much unread that only what matters should be sent."""
        return self._writer.transport.get_write_buffer_size() > MAX_WAITING_BYTES

    def send(self, message: Struct) -> None:
        """Queue a message without waiting; nothing on a connection that is closing."""
        payload = self._encoder.encode(message)
        if not self._writer.is_closing():
            code = self._outgoing.code(payload)
            self._writer.write(_LENGTH.pack(len(payload)) + code + payload)

    async def recv(self, timeout_s: float) -> T:
        """Return the next message.

        Raises:
            ConnectionError: The connection has ended, or nothing came for ``timeout_s``.
            ProtocolError: A frame that must not be believed, nor anything after it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if length > MAX_FRAME_BYTES:
                    raise ProtocolError(f"frame of {length} bytes: the limit is {MAX_FRAME_BYTES}")
                code = await self._reader.readexactly(_CODE_BYTES)
                payload = await self._reader.readexactly(length)
        except TimeoutError as error:
            raise ConnectionResetError(f"silent for {timeout_s:g} s") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionResetError("the connection ended") from error
        if not hmac.compare_digest(code, self._incoming.code(payload)):
            raise ProtocolError("a frame with a wrong key or out of turn")
        try:
            message: T = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a frame that does not parse: {error}") from error
        return message

    async def close(self) -> None:
        """Close; idempotent."""
        await hang_up(self._writer)


async def meet_agent(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> Wire[AnyReport]:
    """Shake hands as the supervisor.

    Raises:
        WrongKeyError: The agent holds another secret.
        ConfigError: No agent, or one of another version.
        ConnectionError: The connection ended meanwhile.
    """
    ours = _HELLO.pack(_MAGIC, WIRE_VERSION, os.urandom(32))
    writer.write(ours)
    theirs = await _read(reader, _HELLO.size)
    magic, version, _ = _HELLO.unpack(theirs)
    if magic != _MAGIC:
        raise ConfigError("expected a headrace agent there, and something else answered")
    _check_version(version)
    proof = await _read(reader, _PROOF_BYTES)
    fresh = _digest(ours + theirs)
    if not hmac.compare_digest(proof, derive(secret, b"agent-proof", fresh)):
        raise WrongKeyError("the agent holds another key; copy the same key file to both hosts")
    writer.write(derive(secret, b"superv-proof", fresh))
    return Wire(
        reader,
        writer,
        outgoing=derive(secret, b"to-agent", fresh),
        incoming=derive(secret, b"to-supervisor", fresh),
        kind=AnyReport,
    )


async def meet_supervisor(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> Wire[AnyOrder]:
    """Shake hands as the agent; nothing is believed before the supervisor's proof.

    Raises:
        WrongKeyError: Whoever connected does not hold the secret.
        ConfigError: Something else than a supervisor, or one of another version.
        ConnectionError: The connection ended meanwhile.
    """
    theirs = await _read(reader, _HELLO.size)
    magic, version, _ = _HELLO.unpack(theirs)
    if magic != _MAGIC:
        raise ConfigError("expected a headrace supervisor, and something else connected")
    ours = _HELLO.pack(_MAGIC, WIRE_VERSION, os.urandom(32))
    fresh = _digest(theirs + ours)
    writer.write(ours + derive(secret, b"agent-proof", fresh))
    _check_version(version)
    proof = await _read(reader, _PROOF_BYTES)
    if not hmac.compare_digest(proof, derive(secret, b"superv-proof", fresh)):
        raise WrongKeyError("the supervisor does not hold this agent's key")
    return Wire(
        reader,
        writer,
        outgoing=derive(secret, b"to-supervisor", fresh),
        incoming=derive(secret, b"to-agent", fresh),
        kind=AnyOrder,
    )


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection, whatever state it is in; what is queued has a second to leave."""
    writer.close()
    closing = asyncio.ensure_future(writer.wait_closed())
    await asyncio.wait({closing}, timeout=_FLUSH_S)
    if not closing.done():
        writer.transport.abort()
    with contextlib.suppress(OSError):
        await closing


async def _read(reader: asyncio.StreamReader, num_bytes: int) -> bytes:
    try:
        return await reader.readexactly(num_bytes)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise ConnectionResetError("the connection ended during the handshake") from error


def _check_version(version: int) -> None:
    if version != WIRE_VERSION:
        raise ConfigError(
            f"the other end speaks version {version} of the agent's protocol, this one "
            f"{WIRE_VERSION}: install the same headrace on both hosts"
        )


def _digest(hellos: bytes) -> bytes:
    return hashlib.blake2b(hellos, digest_size=32).digest()
