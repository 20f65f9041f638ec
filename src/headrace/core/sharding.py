"""Roles, shardings, and which part of a model a rank holds."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from headrace.core.errors import ShardingError


class Role(StrEnum):
    """What a replica does. ``mono`` is prefill and decode in one group, with no transfer."""

    PREFILL = "prefill"
    DECODE = "decode"
    MONO = "mono"


class Sharding(Struct, frozen=True, kw_only=True):
    """TP, DP and EP sizes of one replica.

    A prefill replica has ``tp`` ranks over replicated inputs, its experts split ``ep`` ways
    (``ep`` divides ``tp``; an expert's width is split over the ``tp / ep`` ranks of its group).
    A decode or mono replica has ``dp`` ranks with their own requests and ``ep == dp``.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def num_ranks(self) -> int:
        """Ranks of the replica."""
        return self.tp * self.dp

    def __str__(self) -> str:
        return f"tp={self.tp},dp={self.dp},ep={self.ep}"


def check_sharding(sharding: Sharding, role: Role, *, num_kv_heads: int, num_experts: int) -> None:
    """Refuse a sharding that the engine cannot run, before any weight is read.

    Args:
        sharding: Sizes asked for.
        role: The replica's role.
        num_kv_heads: KV heads of the model (all of them).
        num_experts: Routed experts of a layer; 0 for a dense model.

    Raises:
        ShardingError: Names the size at fault, what it must be and why.
    """
    for name, size in (("tp", sharding.tp), ("dp", sharding.dp), ("ep", sharding.ep)):
        if size < 1:
            raise ShardingError(f"{role} {name}={size}: sizes start at 1")
    if role is Role.PREFILL:
        _check_prefill(sharding, num_kv_heads, num_experts)
    else:
        _check_decode(sharding, role, num_experts)


def _check_prefill(sharding: Sharding, num_kv_heads: int, num_experts: int) -> None:
    if sharding.dp != 1:
        raise ShardingError(
            f"prefill dp={sharding.dp}: a prefill replica has dp=1; ask for more replicas instead"
        )
    if num_kv_heads % sharding.tp:
        raise ShardingError(
            f"prefill tp={sharding.tp} does not divide the model's {num_kv_heads} KV heads: "
            f"choose a tp that does"
        )
    if sharding.tp & (sharding.tp - 1):
        raise ShardingError(
            f"prefill tp={sharding.tp} is not a power of two: canonical sums split in halves"
        )
    if sharding.tp % sharding.ep:
        raise ShardingError(f"prefill ep={sharding.ep} does not divide tp={sharding.tp}")
    _check_experts(sharding.ep, num_experts, "prefill")


def _check_decode(sharding: Sharding, role: Role, num_experts: int) -> None:
    if sharding.tp != 1:
        raise ShardingError(
            f"{role} tp={sharding.tp}: attention of a {role} replica is not sharded; "
            f"use dp={sharding.tp * sharding.dp},ep={sharding.tp * sharding.dp} instead"
        )
    want_ep = sharding.dp if num_experts else 1
    if sharding.ep != want_ep:
        raise ShardingError(
            f"{role} ep={sharding.ep} with dp={sharding.dp}: expected ep={want_ep}"
            + ("" if num_experts else " (a dense model has no experts to split)")
        )
    _check_experts(sharding.ep, num_experts, role)


def _check_experts(ep: int, num_experts: int, role: str) -> None:
    if ep == 1:
        return
    if num_experts % ep:
        raise ShardingError(
            f"{role} ep={ep} does not divide the model's {num_experts} experts: "
            f"choose an ep that does"
        )
    if ep & (ep - 1) or ep > NUM_EXPERT_PARTIALS:
        raise ShardingError(
            f"{role} ep={ep}: canonical sums need a power of two of at most {NUM_EXPERT_PARTIALS}"
        )


# Fixed partials of the sum over experts (docs/numerics.md): part of the numerics, not a knob.
NUM_EXPERT_PARTIALS = 16


def split_range(total: int, parts: int, index: int) -> range:
    """Return part ``index`` of ``range(total)`` cut into ``parts`` runs of nearly equal length.

    With more parts than items, parts share items: part i holds item ``i * total // parts``,
    which is how KV heads are replicated when ranks exceed heads.

    Example:
        >>> [list(split_range(6, 4, i)) for i in range(4)]
        [[0], [1, 2], [3], [4, 5]]
        >>> [list(split_range(2, 4, i)) for i in range(4)]
        [[0], [0], [1], [1]]
    """
    start = index * total // parts
    stop = (index + 1) * total // parts
    return range(start, max(stop, start + 1))
