"""What a supervisor tells its owner, and what it needs from the control plane."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.core.messages import AnyMessage, Failed, LoadProgress, Message, Ready


class Control(Protocol):
    """The part of ``transfer.control.AsyncControlSocket`` that a supervisor uses."""

    def send(self, address: str, message: Message) -> bool:
        """Queue a message without waiting; False when it was dropped."""
        ...

    async def recv(self) -> AnyMessage:
        """Return the next message."""
        ...

    def forget(self, address: str) -> None:
        """Drop the connection to a peer that is gone for good."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExited:
    """A rank's process ended, expected or not.

    Attributes:
        name: The rank, as ``LaunchSpec.name`` has it.
        exit_code: Its exit code; the negative signal number when a signal ended it.
        last_lines: The last lines that it wrote, oldest first.
        lost: Why its host cannot be heard, where that is all that is known; empty when it was
            reaped.
    """

    name: str
    exit_code: int
    last_lines: tuple[str, ...]
    lost: str = ""

    @property
    def is_signal(self) -> bool:
        """Whether it had no chance to say why: a signal ended it, or its host is lost."""
        return self.exit_code < 0 or bool(self.lost)

    def describe(self, when: str = "") -> str:
        """Say in one line how it ended, ``when`` being put in after the end."""
        if self.lost:
            end = f"is lost: {self.lost}"
        elif self.is_signal:
            end = f"was ended by {signal.Signals(-self.exit_code).name}"
        else:
            end = f"ended with exit code {self.exit_code}"
        last = f"; its last line: {self.last_lines[-1]}" if self.last_lines else ""
        return f"{self.name} {end}{when}{last}"

    def __str__(self) -> str:
        return self.describe()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLost:
    """A replica's generation ended; it re-forms under ``generation``.

    Attributes:
        replica: The replica's name.
        generation: The generation that begins.
        reason: Why the last one ended, naming the rank.
    """

    replica: str
    generation: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.replica} re-forms"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBack:
    """A replica is whole again.

    Attributes:
        replica: The replica's name.
        generation: Its generation.
        after_s: How long it was away [s].
    """

    replica: str
    generation: int
    after_s: float

    def __str__(self) -> str:
        return f"{self.replica} is back after {self.after_s:.1f} s"


Event = LoadProgress | Ready | Failed | RankExited | ReplicaLost | ReplicaBack


def ignore(*_: object) -> None:
    """Hear nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Where a supervisor reports; all are called on its event loop and must not block.

    Attributes:
        on_event: Called with every event of a rank's life.
        on_message: Called with every other message that comes to the control socket, such as
            heartbeats and outputs.
        on_line: Called with a rank's name and each line that its process writes.
    """

    on_event: Callable[[Event], None] = ignore
    on_message: Callable[[AnyMessage], None] = ignore
    on_line: Callable[[str, str], None] = ignore
