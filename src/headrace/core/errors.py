"""The one tree of errors that a caller can catch.

    HeadraceError
      UserError                what a person or a file got wrong: exit code 2, one clear line
        ConfigError            a deployment file, a flag or an environment variable
        CheckpointError        a model folder that cannot be read as it stands
        ShardingError          a sharding that this model or this build cannot have
        RequestError           a request refused at the edge; carries the HTTP status and the field
      ProtocolError            a peer's message that must not be believed
      TransferError            KV that did not arrive
        SessionError           a session that ended early; names the rank
        IllegalPlanError       two cache layouts between which no plan exists
      ReplicaError             a rank died, hung or left its group
        CollectiveError        ranks that did not come to a collective; names both
      UnsupportedKernelError   no implementation of a kernel family takes the call site

Messages say what was expected, what came and what to do.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(HeadraceError):
    """Something outside the program is wrong and a person can mend it."""


class ConfigError(UserError):
    """A setting that does not exist, does not parse, or contradicts another."""


class CheckpointError(UserError):
    """A model folder that is incomplete, inconsistent or of an unsupported kind."""


class ShardingError(UserError):
    """A sharding that cannot be; raised before any weight is read."""


class RequestError(UserError):
    """A request refused before it costs anything.

    Args:
        message: What was expected, what came, what to do.
        param: The field at fault, as OpenAI's error shape names it.
        status: HTTP status to answer with.
        code: Machine-readable reason, as OpenAI's error shape has it.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


class ProtocolError(HeadraceError):
    """A frame of the wrong version, size, key or shape; dropped and counted."""


class TransferError(HeadraceError):
    """KV that did not arrive, or could not be sent."""


class SessionError(TransferError):
    """A transfer session that ended before its KV was whole.

    Args:
        message: What happened.
        rank: The source rank at fault, where one can be named.
    """

    def __init__(self, message: str, *, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class IllegalPlanError(TransferError):
    """Two cache layouts between which no transfer plan exists; the message names both values."""


class ReplicaError(HeadraceError):
    """A rank died, hung, or did not reach a collective inside its deadline."""


class CollectiveError(ReplicaError):
    """A collective that cannot be finished.

    Args:
        message: What happened, for a reader who knows neither step nor layer.
        collective: Its name.
        exchange: Running number of the exchange in the group.
        missing: Ranks that did not come; empty when all came but disagreed.
        waited_s: How long they were waited for [s].
        because: What is known of the missing, as the end of a sentence; may be empty.
    """

    def __init__(
        self,
        message: str,
        *,
        collective: str,
        exchange: int,
        missing: tuple[int, ...] = (),
        waited_s: float = 0.0,
        because: str = "",
    ) -> None:
        super().__init__(message)
        self.collective = collective
        self.exchange = exchange
        self.missing = missing
        self.waited_s = waited_s
        self.because = because


class UnsupportedKernelError(HeadraceError):
    """No variant of a kernel family takes the call site; the message says why each declined."""
