"""What a supervisor orders of an agent, and what the agent reports: one keyed connection each way.

``number`` is the supervisor's own name of a process, never used twice on a connection.
"""

from __future__ import annotations

from msgspec import Struct

from headrace.core.launch import LaunchSpec


class Order(Struct, kw_only=True, tag=True):
    """Base of what goes to an agent; ``tag`` is the class name on the wire."""


class Open(Order):
    """First of all: begin to serve a deployment.

    Attributes:
        version: The supervisor's version of this package.
        deployment_id: The deployment, for the log.
        nonce: Fresh for each deployment; both ends derive its key from it and the secret.
        model: Model folder or ``replay:FILE`` that ranks will be told to open; empty for none.
    """

    version: str
    deployment_id: str
    nonce: bytes
    model: str = ""


class Spawn(Order):
    """Start a rank. The spec's key and run folder are the agent's to fill in."""

    number: int
    spec: LaunchSpec


class Signal(Order):
    """Signal a rank's process and what it started."""

    number: int
    signal: int


class Sweep(Order):
    """Delete what a generation of a rank left; its process is gone."""

    replica: str
    rank: int
    generation: int


class Report(Struct, kw_only=True, tag=True):
    """Base of what comes from an agent."""


class Opened(Report):
    """The deployment may spawn ranks."""


class Refused(Report):
    """The deployment cannot be served here, for a reason that a person can mend."""

    error: str


class Spawned(Report):
    """A rank's process runs."""

    number: int
    pid: int


class NotSpawned(Report):
    """A rank's process could not be started."""

    number: int
    error: str


class Line(Report):
    """A rank wrote a line."""

    number: int
    text: str


class Exited(Report):
    """A rank's process has been reaped; nothing of it can write any more."""

    number: int
    exit_code: int
    last_lines: tuple[str, ...]


class Beat(Struct, kw_only=True, tag=True):
    """A sign of life, both ways."""


AnyOrder = Open | Spawn | Signal | Sweep | Beat
AnyReport = Opened | Refused | Spawned | NotSpawned | Line | Exited | Beat
