"""When the router calls a rank late, and when dead."""

from __future__ import annotations

from msgspec import Struct

from headrace.core.errors import ConfigError


class RegistryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a silent or standing rank counts as late, and when as dead.

    Attributes:
        late_s: Silence after which a rank is late and ``/ready`` red [s]; several heartbeats.
        dead_s: Silence after which a rank gets no new requests at all [s].
        stuck_s: Time without progress, requests waiting, after which a rank is late and
            ``/ready`` red [s]. Longer than any honest step or transfer: waiting for a busy
            prefiller is not progress either.
    """

    late_s: float = 3.0
    dead_s: float = 15.0
    stuck_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0.0 < self.late_s <= self.dead_s:
            raise ConfigError(
                f"late_s={self.late_s}, dead_s={self.dead_s}: expected 0 < late_s <= dead_s"
            )
        if not self.stuck_s > 0.0:
            raise ConfigError(f"stuck_s={self.stuck_s}: expected more than 0")
