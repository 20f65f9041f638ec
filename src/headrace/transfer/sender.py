"""Send sessions of a prefill rank: chunk by chunk and layer by layer, until drained.

Sans-IO but for the writer it is given (the rank's ``TransferEngine``). Messages for other ranks
come out of ``poll`` with the address that they go to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from headrace.core.layouts import CacheLayout
from headrace.core.messages import (
    CancelSession,
    Message,
    PrefillRequest,
    RegionDescriptor,
)
from headrace.core.transport import CancelToken, Completion, Fragments, Region


class Outgoing(Struct, frozen=True):
    """A message and the control address that it goes to."""

    address: str
    message: Message


class WriteEngine(Protocol):
    """The part of ``TransferEngine`` that senders use."""

    def write(
        self,
        source: Region,
        target: RegionDescriptor,
        fragments: Fragments,
        *,
        imm: int,
        token: CancelToken | None = None,
    ) -> Completion:
        """See ``TransferEngine.write``."""
        ...

    def end_writes(self, target: RegionDescriptor, imm: int) -> None:
        """See ``TransferEngine.end_writes``."""
        ...


class SendSessions:
    """All send sessions of one prefill rank.

    Args:
        engine: Writes fragments.
        region: This rank's KV region.
        sources: Layout of every rank of the replica, in rank order.
        rank: This rank's index.
        generation: This rank's generation.
        lead_address: Control address of the replica's lead, which is told ``SendDone``.

    Guarantees:
        * Only tokens of [start, n - 1) of the request are sent, each once if each is submitted
          once.
        * No write begins for a session that is unknown, cancelled or failed.
        * Each session yields ``SendDone`` exactly once, when its last write has completed or
          drained; and, if it was cancelled or failed, one ``SessionQuiet`` after that.
        * A ``CancelSession`` for a session that is over or was never opened is answered with
          ``SessionQuiet`` at once, and the session can then never be opened.
    """

    def __init__(
        self,
        engine: WriteEngine,
        *,
        region: Region,
        sources: Sequence[CacheLayout],
        rank: int,
        generation: int,
        lead_address: str,
    ) -> None: ...

    def __len__(self) -> int:
        """Sessions that are not drained."""
        return 0

    def open(self, request: PrefillRequest, *, block_ids: Sequence[int]) -> bool:
        """Begin a session.

        Args:
            request: The decoder's request.
            block_ids: The replica's own blocks, for the prompt from position 0.

        Returns:
            False if the session was cancelled before it was opened: nothing is to be computed.

        Raises:
            IllegalPlanError: No plan exists between this replica and the decoder.
        """
        return True

    def submit(self, session_id: str, *, layer: int, start: int, stop: int) -> None:
        """Send one layer's KV of tokens ``[start, stop)``; it is in this rank's region now.

        Tokens outside the request's range are left out; a session that is over is ignored.
        """

    def cancel(self, message: CancelSession) -> None:
        """Stop new writes of a session; pending ones drain, then ``poll`` says quiet."""

    def fail(self, session_id: str, reason: str) -> None:
        """Give a session up from this side (the step failed); told to the decoder."""

    def forget_target(self, *, generation: int, name: str) -> None:
        """Give up every session into a region whose owner is dead; nobody is told but the lead."""

    def poll(self) -> list[Outgoing]:
        """Follow pending writes; return messages to send."""
        return []

    def is_drained(self, session_id: str) -> bool:
        """Whether this rank will never read blocks for the session again."""
        return True

    def close(self, session_id: str) -> None:
        """Forget a session that the lead has ended (``CloseSend``)."""
