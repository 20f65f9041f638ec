"""The frame that carries one message between processes.

A frame is ``magic(2) version(2) mac(16) payload``; the payload is one tagged MessagePack object.
The MAC is keyed per deployment, so a process that was not started with it can neither speak nor
be believed. Sizes are capped before anything is parsed. No pickle, no class names from the wire.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

import msgspec

from headrace.core.errors import ConfigError, ProtocolError
from headrace.core.messages import AnyMessage, Message

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 64 << 20
MAC_BYTES = 16
_HEADER = struct.Struct("!2sH16s")
HEADER_BYTES = _HEADER.size
_MAGIC = b"HR"


class Codec:
    """Turns messages into authenticated frames and back.

    Args:
        key: Secret of the deployment, at least 16 bytes; handed to ranks at launch.

    Raises:
        ProtocolError: From ``decode``: wrong magic, version, key, size or shape.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ProtocolError(f"control key of {len(key)} bytes: expected at least 16")
        self._key = key
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)

    def encode(self, message: Message) -> bytes:
        """Return the frame of ``message``."""
        payload = self._encoder.encode(message)
        if len(payload) + _HEADER.size > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"{type(message).__name__} of {len(payload)} bytes: the limit is {MAX_FRAME_BYTES}"
            )
        return _HEADER.pack(_MAGIC, PROTOCOL_VERSION, self._mac(payload)) + payload

    def decode(self, frame: bytes | memoryview) -> AnyMessage:
        """Return the message in ``frame``, or raise without having believed any of it."""
        if not _HEADER.size <= len(frame) <= MAX_FRAME_BYTES:
            raise ProtocolError(f"frame of {len(frame)} bytes: outside the size limits")
        magic, version, mac = _HEADER.unpack_from(frame)
        if magic != _MAGIC:
            raise ProtocolError("frame without the protocol's magic")
        if version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"protocol version {version}: this process speaks {PROTOCOL_VERSION}"
            )
        payload = memoryview(frame)[_HEADER.size :]
        if not hmac.compare_digest(mac, self._mac(payload)):
            raise ProtocolError("frame with a wrong key")
        try:
            return self._decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError, ConfigError) as error:
            # Layouts check themselves, wherever they come from.
            raise ProtocolError(f"frame that does not parse: {error}") from error

    def seal(self, data: bytes, *, purpose: bytes) -> bytes:
        """Return an authentication code of ``data`` that holds for one purpose only.

        Args:
            data: What is to be believed.
            purpose: 1 to 16 bytes; a code made for one purpose is wrong for every other.
        """
        return hashlib.blake2b(
            data, key=self._key[:64], digest_size=MAC_BYTES, person=purpose
        ).digest()

    def _mac(self, payload: bytes | memoryview) -> bytes:
        return hashlib.blake2b(payload, key=self._key[:64], digest_size=MAC_BYTES).digest()
