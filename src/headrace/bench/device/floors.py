"""The bytes and operations that a step of a model cannot do without. No device needed.

Counted are the weights of the experts that are hit, once, all other weights, once, and the KV that
attention reads; activations stay in cache.
"""

from __future__ import annotations

from headrace.kernels.costs import attention as costs
from headrace.kernels.costs.moe import ExpertSizes, expert_weight_bytes, experts_flops
from headrace.models.config import ModelConfig


def expert_sizes(config: ModelConfig, *, itemsize: int = 2) -> ExpertSizes:
    """Return the sizes of a model's expert layers."""
    return ExpertSizes(
        num_experts=config.num_experts,
        top_k=config.top_k,
        hidden=config.hidden_size,
        width=config.moe_intermediate_size,
        row_bytes=itemsize,
        weight_bytes=itemsize,
    )


def attention_sizes(config: ModelConfig) -> costs.AttentionSizes:
    """Return the sizes of a model's attention layers."""
    return costs.AttentionSizes(
        num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim
    )


def num_moe_layers(config: ModelConfig) -> int:
    """Return how many layers have experts."""
    return sum(config.is_moe_layer(index) for index in range(config.num_layers))


def attention_weight_elements(config: ModelConfig) -> int:
    """Return the elements of one layer's projections."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    return config.hidden_size * heads * config.head_dim


def dense_weight_elements(config: ModelConfig) -> int:
    """Return the elements of all weights but the experts and the embedding table."""
    num_moe = num_moe_layers(config)
    num_dense = config.num_layers - num_moe
    return (
        config.num_layers * attention_weight_elements(config)
        + num_moe * config.num_experts * config.hidden_size
        + num_dense * 3 * config.hidden_size * config.intermediate_size
        + config.vocab_size * config.hidden_size
    )


def kv_bytes_per_token(config: ModelConfig, *, itemsize: int = 2) -> int:
    """Return the KV of one token in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize


def decode_bytes(
    config: ModelConfig, *, batch: int, context: int, experts_hit: float, itemsize: int = 2
) -> float:
    """Return what a decode step reads.

    Args:
        config: The model.
        batch: Sequences.
        context: Tokens of each, its new one included.
        experts_hit: Mean over the layers.
        itemsize: Bytes of an element of weights and KV.
    """
    experts = num_moe_layers(config) * experts_hit
    return (
        dense_weight_elements(config) * itemsize
        + experts * expert_weight_bytes(expert_sizes(config, itemsize=itemsize))
        + batch * context * kv_bytes_per_token(config, itemsize=itemsize)
    )


def prefill_flops(config: ModelConfig, lens: list[int]) -> int:
    """Return the operations of prompts of these lengths from position 0, one row of logits each."""
    tokens = sum(lens)
    dense = 2 * tokens * (dense_weight_elements(config) - config.vocab_size * config.hidden_size)
    head = 2 * len(lens) * config.vocab_size * config.hidden_size
    experts = num_moe_layers(config) * experts_flops(tokens, expert_sizes(config))
    attention = config.num_layers * costs.prefill_flops(lens, lens, attention_sizes(config))
    return dense + head + experts + attention
