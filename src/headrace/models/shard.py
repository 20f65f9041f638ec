"""Which part of a model one rank holds, as index ranges, and the leaves of the canonical sums.

Ranks of a prefill replica are ordered so that canonical sums stay contiguous: with
``width_ranks = tp / ep``, rank r holds expert part ``r // width_ranks`` and width part
``r % width_ranks``. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.errors import ShardingError
from headrace.core.sharding import (
    NUM_EXPERT_PARTIALS,
    Role,
    Sharding,
    check_sharding,
    split_range,
)
from headrace.models.config import ModelConfig

NUM_WIDTH_PARTS = 4
MAX_DENSE_PARTS = 16

# fp32 products are independent of how their columns are split only down to slices of this many.
MIN_COLUMNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShard:
    """One rank's part of a model; all ranges are model-wide indices.

    Attributes:
        tp_rank: Index among the ranks that split attention heads.
        tp_size: Ranks that split attention heads.
        q_heads: Query heads held.
        kv_heads: KV heads held, hence leaves of the attention output held.
        experts: Experts held; empty in a dense model.
        num_expert_groups: Groups G of the whole model's sum over experts.
        num_width_parts: Width parts W of the whole model's sum over experts.
        width_parts: Width parts held.
        expert_columns: Columns of every expert's width that the width parts cover.
        dense_columns: Columns of a dense MLP's width held.
        num_dense_parts: Leaves of a whole dense MLP's sum.
    """

    tp_rank: int
    tp_size: int
    q_heads: range
    kv_heads: range
    experts: range
    num_expert_groups: int
    num_width_parts: int
    width_parts: range
    expert_columns: range
    dense_columns: range
    num_dense_parts: int

    @property
    def owns_whole_width(self) -> bool:
        """Whether this rank's experts are held in full: its expert sum is then one subtree."""
        return len(self.width_parts) == self.num_width_parts


def expert_groups(num_experts: int) -> int:
    """Return the groups of contiguous experts of the canonical sum: at most 16, a power of two."""
    return _power_of_two_divisor(num_experts, NUM_EXPERT_PARTIALS)


def expert_width_parts(width: int) -> int:
    """Return the width parts of an expert in the canonical sum."""
    return NUM_WIDTH_PARTS if width % (NUM_WIDTH_PARTS * MIN_COLUMNS) == 0 else 1


def dense_parts(width: int) -> int:
    """Return the leaves of a dense MLP's canonical sum."""
    return _power_of_two_divisor(width, MAX_DENSE_PARTS)


def shard_of(config: ModelConfig, sharding: Sharding, role: Role, *, rank: int) -> ModelShard:
    """Return what ``rank`` holds, or refuse before any weight is read.

    Args:
        config: The model.
        sharding: The replica's sizes.
        role: The replica's role: only ``prefill`` splits attention and dense layers.
        rank: Index of the rank in the replica.

    Raises:
        ShardingError: The sharding cannot be for this model; names the size at fault.
    """
    check_sharding(sharding, role, num_kv_heads=config.num_kv_heads, num_experts=config.num_experts)
    is_prefill = role is Role.PREFILL
    tp_size = sharding.tp if is_prefill else 1
    tp_rank = rank if is_prefill else 0
    width_ranks = tp_size // sharding.ep if is_prefill else 1
    if not config.num_experts:
        width_ranks = 1
    _check_widths(config, tp_size=tp_size, width_ranks=width_ranks)
    kv_heads = split_range(config.num_kv_heads, tp_size, tp_rank)
    queries_per_kv = config.num_heads // config.num_kv_heads
    num_parts = expert_width_parts(config.moe_intermediate_size)
    parts = split_range(num_parts, width_ranks, rank % width_ranks)
    part_columns = config.moe_intermediate_size // num_parts
    return ModelShard(
        tp_rank=tp_rank,
        tp_size=tp_size,
        q_heads=range(kv_heads.start * queries_per_kv, kv_heads.stop * queries_per_kv),
        kv_heads=kv_heads,
        experts=_experts(config, sharding.ep, rank // width_ranks),
        num_expert_groups=expert_groups(config.num_experts) if config.num_experts else 0,
        num_width_parts=num_parts,
        width_parts=parts,
        expert_columns=range(parts.start * part_columns, parts.stop * part_columns),
        dense_columns=split_range(config.intermediate_size, tp_size, tp_rank),
        num_dense_parts=dense_parts(config.intermediate_size),
    )


def _experts(config: ModelConfig, ep: int, ep_rank: int) -> range:
    return split_range(config.num_experts, ep, ep_rank) if config.num_experts else range(0)


def _check_widths(config: ModelConfig, *, tp_size: int, width_ranks: int) -> None:
    if config.dense_layers and tp_size > 1:
        width = config.intermediate_size
        if dense_parts(width) % tp_size or width // tp_size < MIN_COLUMNS:
            raise ShardingError(
                f"prefill tp={tp_size} cannot split a dense MLP of width {width}: its sum has "
                f"{dense_parts(width)} parts; choose a tp that divides them"
            )
    if width_ranks > 1:
        width = config.moe_intermediate_size
        if expert_width_parts(width) % width_ranks:
            raise ShardingError(
                f"prefill tp/ep={width_ranks} cannot split experts of width {width}: their sum "
                f"has {expert_width_parts(width)} width parts; choose an ep nearer to tp"
            )


def _power_of_two_divisor(number: int, limit: int) -> int:
    divisor = 1
    while divisor < limit and number % (2 * divisor) == 0:
        divisor *= 2
    return divisor
