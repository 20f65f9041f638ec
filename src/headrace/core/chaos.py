"""Faults on purpose: what ``--chaos`` asks for, as plain values, and how it is spelled.

    lose=0.03,delay=50ms,kill=prefill@12s

Faults of writes travel to the ranks in their launch specs, where ``transfer.chaos`` does them;
blows against ranks stay with the process that serves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from headrace.core.config import suggest
from headrace.core.errors import ConfigError

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_RANK = re.compile(r"(prefill|decode|mono)(\d+(\.\d+)?)?")
_LONGEST_S = 3600.0


class WriteFaults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong with the writes of every rank.

    Attributes:
        seed: Of everything random.
        lose: Share of sessions that lose one of their writes: its bytes never move and nothing
            rings, while the sender sees success.
        delay_s: Time that each write is held before it goes on [s].
        duplicate: Share of immediates that come twice.
        reorder: Share of writes that are held a little longer, so that later ones overtake them.
        hold: Share of writes that are held for ``hold_s``, whatever becomes of their session.
        hold_s: See ``hold`` [s].
    """

    seed: int = 0
    lose: float = 0.0
    delay_s: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    hold: float = 0.0
    hold_s: float = 0.0

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong."""
        shares = (self.lose, self.delay_s, self.duplicate, self.reorder, self.hold)
        return not any(shares)


class Blow(Struct, frozen=True, kw_only=True):
    """A signal to one rank at a time.

    Attributes:
        kind: ``kill``, or ``stop``: it stays, and says nothing any more.
        target: A role, a replica or a rank: ``prefill``, ``prefill0``, ``prefill0.1``.
        at_s: When, from the moment that all ranks are ready [s].
    """

    kind: str
    target: str
    at_s: float

    def hits(self, rank: str) -> bool:
        """Whether a rank, named like ``prefill0.1``, is among those that the target means."""
        replica = rank.partition(".")[0]
        return self.target in (rank, replica, replica.rstrip("0123456789"))


class ChaosPlan(Struct, frozen=True, kw_only=True):
    """All that is to go wrong; nothing by default."""

    writes: WriteFaults = WriteFaults()
    blows: tuple[Blow, ...] = ()

    def check_targets(self, ranks: Sequence[str]) -> None:
        """Refuse blows that no rank of the deployment could ever take.

        Raises:
            ConfigError: Names the blow and the ranks that there are.
        """
        for blow in self.blows:
            if not any(blow.hits(rank) for rank in ranks):
                raise ConfigError(
                    f"chaos {blow.kind}={blow.target}: no such rank; the deployment has "
                    f"{', '.join(ranks)}"
                )


def parse_chaos(text: str) -> ChaosPlan:
    """Parse what ``--chaos`` takes; an empty text asks for nothing.

    Raises:
        ConfigError: Names the part at fault, what it should be, or the nearest key.

    Example:
        >>> plan = parse_chaos("lose=0.03,delay=50ms,kill=prefill@12s")
        >>> plan.writes.lose, plan.writes.delay_s, plan.blows[0].target, plan.blows[0].at_s
        (0.03, 0.05, 'prefill', 12.0)
    """
    faults: dict[str, Any] = {}
    blows: list[Blow] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, eq, value = (piece.strip() for piece in part.partition("="))
        if key not in _EXAMPLES:
            raise ConfigError(
                f"chaos {part!r}: unknown key {key!r}; {suggest(key, list(_EXAMPLES))}"
            )
        if not (eq and value):
            raise ConfigError(f"chaos {part!r}: expected a value, such as {_EXAMPLES[key]}")
        if key in _BLOWS:
            blows.append(_blow(key, part, value))
            continue
        if key in faults:
            raise ConfigError(f"chaos {part!r}: {key} is given twice")
        faults[key] = value
    fields = {name: it for key in faults for name, it in _PARSERS[key](key, faults[key]).items()}
    return ChaosPlan(
        writes=msgspec.convert(fields, WriteFaults),
        blows=tuple(sorted(blows, key=lambda blow: blow.at_s)),
    )


def _share(key: str, value: str) -> dict[str, float]:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise _refusal(key, value, "a share from 0 to 1")
    return {key: share}


def _delay(key: str, value: str) -> dict[str, float]:
    return {"delay_s": _seconds(key, value, value)}


def _hold(key: str, value: str) -> dict[str, float]:
    share, at, time = value.partition("@")
    if not at:
        raise _refusal(key, value, "a share and how long")
    return {**_share(key, share), "hold_s": _seconds(key, value, time)}


def _seed(key: str, value: str) -> dict[str, int]:
    if not (value.isascii() and value.isdigit() and len(value) <= 9):
        raise _refusal(key, value, "a whole number of at most 9 digits")
    return {"seed": int(value)}


def _blow(kind: str, part: str, value: str) -> Blow:
    target, at, time = value.partition("@")
    if not at:
        raise _refusal(kind, value, "whom and when")
    if not _RANK.fullmatch(target):
        raise ConfigError(
            f"chaos {part!r}: expected a role, replica or rank, such as prefill, prefill0 or "
            f"prefill0.1, got {target!r}"
        )
    return Blow(kind=kind, target=target, at_s=_seconds(kind, value, time))


def _seconds(key: str, value: str, time: str) -> float:
    found = _TIME.fullmatch(time)
    if found is None:
        raise _refusal(key, value, "a time in s or ms")
    seconds = float(found[1]) * (0.001 if found[2] == "ms" else 1.0)
    if seconds > _LONGEST_S:
        raise _refusal(key, value, f"at most {_LONGEST_S:g}s")
    return seconds


def _refusal(key: str, value: str, expected: str) -> ConfigError:
    return ConfigError(
        f"chaos '{key}={value}': expected {expected}, such as {_EXAMPLES[key]}, got {value!r}"
    )


_EXAMPLES = {
    "lose": "lose=0.03",
    "delay": "delay=50ms",
    "duplicate": "duplicate=0.1",
    "reorder": "reorder=0.2",
    "hold": "hold=0.01@3s",
    "seed": "seed=7",
    "kill": "kill=prefill@12s",
    "stop": "stop=decode0.1@3s",
}
_BLOWS = ("kill", "stop")
_PARSERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "lose": _share,
    "delay": _delay,
    "duplicate": _share,
    "reorder": _share,
    "hold": _hold,
    "seed": _seed,
}
