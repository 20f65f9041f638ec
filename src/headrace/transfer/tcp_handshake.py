"""How a data socket opens: both sides prove the deployment's key over fresh nonces.

    writer  Hello      version, name, rank, generation, whom it means, link, nonce
    owner   Challenge  nonce, proof over both nonces
    writer  Proof      proof over both nonces, in its own role
    owner   Verdict    taken, or refused and why; authenticated by the keys of the socket

Nothing secret travels, and nothing recorded can be used again: each side's nonce is in each proof,
and in the keys of both directions. Sans-IO: bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from enum import IntEnum

import msgspec
from msgspec import Struct

from headrace.core.errors import ProtocolError

PROTOCOL_VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
CHALLENGE_BYTES = NONCE_BYTES + PROOF_BYTES
VERDICT_BYTES = 1 + PROOF_BYTES
_MAGIC = b"HRKV"
_PREFIX = struct.Struct("!4sH")
PREFIX_BYTES = _PREFIX.size
MAX_HELLO_BYTES = 512


class Hello(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a writer says first.

    Attributes:
        version: Protocol version.
        owner: Writer's name, e.g. ``prefill0.1``.
        rank: Its index in its replica.
        generation: Its generation.
        target_generation: Generation of the region's owner that it means.
        link: Random; equal for all sockets of one connection between two ranks.
        nonce: Fresh random bytes.
    """

    version: int
    owner: str
    rank: int
    generation: int
    target_generation: int
    link: bytes
    nonce: bytes


class Verdict(IntEnum):
    """The owner's answer to an authentic writer."""

    TAKEN = 0
    OTHER_GENERATION = 1
    STALE_WRITER = 2
    TOO_MANY = 3


class Keys(Struct, frozen=True):
    """Keys of one socket, one per direction."""

    to_owner: bytes
    to_writer: bytes


class WriterHandshake:
    """The writer's half.

    Args:
        key: Secret of the deployment.
        hello: Whom it speaks for; its nonce is fresh.
    """

    def __init__(self, key: bytes, hello: Hello) -> None:
        self._key = key[:64]
        self._hello = msgspec.msgpack.encode(hello)
        self._transcript = b""

    def hello(self) -> bytes:
        """Return what to send first."""
        return _PREFIX.pack(_MAGIC, len(self._hello)) + self._hello

    def prove(self, challenge: bytes) -> bytes:
        """Return the proof that answers a challenge of ``CHALLENGE_BYTES``.

        Raises:
            ProtocolError: The owner does not hold the key.
        """
        nonce, proof = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        self._transcript = self._hello + nonce
        if not hmac.compare_digest(proof, _mac(self._key, b"owner", self._transcript)):
            raise ProtocolError("the other side does not hold this deployment's key")
        return _mac(self._key, b"writer", self._transcript)

    def finish(self, verdict: bytes) -> Keys:
        """Return the socket's keys.

        Raises:
            ProtocolError: The owner refused, or its verdict is not authentic.
        """
        keys = _derive(self._key, self._transcript)
        if not hmac.compare_digest(verdict[1:], _mac(keys.to_writer, verdict[:1], b"")):
            raise ProtocolError("the verdict of the other side is not authentic")
        if verdict[0] != Verdict.TAKEN:
            known = verdict[0] in Verdict.__members__.values()
            reason = Verdict(verdict[0]).name.lower().replace("_", " ") if known else "unknown"
            raise ProtocolError(f"the other side refused the connection: {reason}")
        return keys


class OwnerHandshake:
    """The half of the region's owner.

    Args:
        key: Secret of the deployment.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]
        self._transcript = b""

    @staticmethod
    def hello_bytes(prefix: bytes) -> int:
        """Return how long the hello after a prefix of ``PREFIX_BYTES`` is.

        Raises:
            ProtocolError: Something else speaks, or it is too long.
        """
        magic, num_bytes = _PREFIX.unpack(prefix)
        if magic != _MAGIC or not 0 < num_bytes <= MAX_HELLO_BYTES:
            raise ProtocolError("a connection that does not begin with a hello")
        return int(num_bytes)

    def challenge(self, hello: bytes) -> tuple[Hello, bytes]:
        """Return whom a hello names, to be believed once proven, and the answer to it.

        Raises:
            ProtocolError: It does not parse, or speaks another version.
        """
        try:
            parsed = msgspec.msgpack.decode(hello, type=Hello)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"hello that does not parse: {error}") from error
        if parsed.version != PROTOCOL_VERSION or len(parsed.nonce) != NONCE_BYTES:
            raise ProtocolError(
                f"hello of protocol version {parsed.version}: this rank speaks {PROTOCOL_VERSION}"
            )
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._transcript = hello + nonce
        return parsed, nonce + _mac(self._key, b"owner", self._transcript)

    def finish(self, proof: bytes) -> Keys:
        """Return the socket's keys.

        Raises:
            ProtocolError: The writer does not hold the key.
        """
        if not hmac.compare_digest(proof, _mac(self._key, b"writer", self._transcript)):
            raise ProtocolError("a writer that does not hold this deployment's key")
        return _derive(self._key, self._transcript)

    @staticmethod
    def verdict(keys: Keys, verdict: Verdict) -> bytes:
        """Return what to tell an authentic writer."""
        said = bytes([verdict])
        return said + _mac(keys.to_writer, said, b"")


def _derive(key: bytes, transcript: bytes) -> Keys:
    return Keys(_mac(key, b"to owner", transcript), _mac(key, b"to writer", transcript))


def _mac(key: bytes, role: bytes, text: bytes) -> bytes:
    message = bytes([len(role)]) + role + text
    return hashlib.blake2b(
        message, key=key, digest_size=PROOF_BYTES, person=b"headrace-tcp"
    ).digest()
