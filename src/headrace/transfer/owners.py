"""Which source rank sends which head: the only choice that a transfer plan has.

Where ranks outnumber KV heads, several source ranks hold the same head; each destination takes a
head from exactly one of them. Both ends compute the choice from the same seed, so the receiver
knows how many bytes each source rank owes without being told.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.errors import IllegalPlanError
from headrace.core.layouts import CacheLayout

Owners = dict[tuple[int, int], list[int]]

_MASK = (1 << 64) - 1


def choose_owners(
    sources: Sequence[CacheLayout], targets: Sequence[CacheLayout], *, seed: int
) -> Owners:
    """Choose one source rank for every (head, destination rank).

    Args:
        sources: Layout of each source rank.
        targets: Layout of each destination rank.
        seed: Same on both sides; the session's immediate id.

    Returns:
        Heads (model-wide, ascending) that source rank s sends to destination rank t, by (s, t);
        pairs with nothing to send are absent.

    Raises:
        IllegalPlanError: A destination head that no source rank holds.

    Guarantees:
        * Every head of every destination is in exactly one list of that destination.
        * Between two replicas of a head, the one with less to send so far is taken; the seed
          decides ties, so that equal sessions load replicas evenly.
        * Depends on the arguments only: the same on every machine and Python version.
    """
    owners: Owners = {}
    load = [0] * len(sources)
    for target, layout in enumerate(targets):
        for head in layout.heads:
            holders = [rank for rank, source in enumerate(sources) if head in source.heads]
            if not holders:
                raise IllegalPlanError(
                    f"destination rank {target} needs KV head {head}, which none of the "
                    f"{len(sources)} source ranks holds ({_held(sources)})"
                )
            first = _mix(seed, target, head) % len(holders)
            ranked = holders[first:] + holders[:first]
            source = min(ranked, key=load.__getitem__)
            load[source] += 1
            owners.setdefault((source, target), []).append(head)
    return owners


def expected_bytes(target: CacheLayout, *, start: int, stop: int) -> int:
    """Return the destination bytes of tokens ``[start, stop)``, without any plan.

    This is ``(n-1-d) x layers x 2 x heads x dim x itemsize`` with
    ``stop = n-1`` and ``start = d``.
    """
    return max(0, stop - start) * target.bytes_per_token()


def expected_bytes_by_source(
    sources: Sequence[CacheLayout], target: CacheLayout, *, start: int, stop: int, seed: int
) -> dict[int, int]:
    """Return what each source rank owes one destination for ``[start, stop)`` [bytes].

    Every source rank has an entry; a rank whose heads are sent by its replicas owes 0. The block
    sizes and pool sizes of ``sources`` do not matter: only which heads each one holds.
    """
    owed = dict.fromkeys(range(len(sources)), 0)
    per_head = expected_bytes(target, start=start, stop=stop) // target.num_heads
    for (source, _), heads in choose_owners(sources, [target], seed=seed).items():
        owed[source] = len(heads) * per_head
    return owed


def _held(sources: Sequence[CacheLayout]) -> str:
    held = sorted({head for source in sources for head in source.heads})
    return f"held: {', '.join(map(str, held)) or 'none'}"


def _mix(*values: int) -> int:
    """Hash small integers to 64 bits (the finaliser of splitmix64)."""
    state = 0
    for value in values:
        state = (state + value + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state
