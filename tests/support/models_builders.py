"""Tiny random models, their weights, and steps to run them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headrace.core.sharding import Role, Sharding
from headrace.models.config import ModelConfig, parse_config
from headrace.models.forward_batch import SequenceChunk, build_forward_batch
from headrace.models.registry import Model
from headrace.models.slices import weight_slices

MOE_JSON: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 96,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "intermediate_size": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "eos_token_id": 1,
    "bos_token_id": None,
}

DENSE_JSON: dict[str, Any] = {
    key: value
    for key, value in MOE_JSON.items()
    if "expert" not in key and key not in ("decoder_sparse_step", "mlp_only_layers")
} | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
DENSE_JSON.pop("moe_intermediate_size")
DENSE_JSON.pop("norm_topk_prob")


def tiny_config(base: dict[str, Any] = MOE_JSON, **changes: Any) -> ModelConfig:
    return parse_config(base | changes)


def random_weights(config: ModelConfig, *, seed: int = 0) -> dict[str, Tensor]:
    """Whole parameters by canonical name, lively enough that every part matters."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for spec in weight_slices(config, Sharding(), Role.MONO, rank=0):
        values = torch.randn(spec.shape, generator=generator)
        is_norm = len(spec.shape) == 1 and spec.name.endswith("norm.weight")
        scale = spec.shape[-1] ** -0.5
        weights[spec.name] = 1 + 0.2 * values if is_norm else values * 1.5 * scale
    return weights


def rank_weights(
    weights: dict[str, Tensor], config: ModelConfig, sharding: Sharding, role: Role, *, rank: int
) -> dict[str, Tensor]:
    """Cut one rank's part out of whole parameters, as the loader does from files."""
    parts = {}
    for spec in weight_slices(config, sharding, role, rank=rank):
        part = weights[spec.name]
        for axis, runs in spec.slices:
            pieces = [part.narrow(axis, start, stop - start) for start, stop in runs]
            part = torch.cat(pieces, dim=axis)
        assert part.shape == spec.local_shape
        parts[spec.name] = part.contiguous()
    return parts


def random_prompts(lengths: Sequence[int], *, vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(len(lengths))
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]


class Cache:
    """Pools of one rank, filled with NaN where nothing was written."""

    def __init__(self, model: Model, *, num_blocks: int, block_size: int) -> None:
        shape = model.attention_shape(block_size)
        self.shape = shape
        self.pools = [
            torch.full(
                (2, shape.num_kv_heads, num_blocks, block_size, schema.head_dim),
                torch.nan,
                dtype=getattr(torch, schema.dtype),
            )
            for schema in model.cache_schema
        ]

    def run(self, model: Model, chunks: Sequence[SequenceChunk]) -> Tensor:
        """Run one step; return the logits of the rows that want them."""
        return model.forward(build_forward_batch(chunks, self.shape), self.pools)

    def run_all_rows(self, model: Model, chunks: Sequence[SequenceChunk]) -> Tensor:
        """Run one step; return the logits of every row."""
        batch = build_forward_batch(chunks, self.shape)
        batch = replace(batch, logit_rows_L=torch.arange(batch.num_tokens))
        return model.forward(batch, self.pools)


def blocks_of(sequence: int, *, num_tokens: int, block_size: int) -> list[int]:
    """Scattered, never shared block ids: sequence s owns ids of residue s modulo 8, descending."""
    count = -(-num_tokens // block_size)
    return [8 * (count - index) + sequence for index in range(count)]


def teacher_forced_logits(
    model: Model, prompts: Sequence[Sequence[int]], *, chunk: int, block_size: int = 16
) -> list[Tensor]:
    """Return the logits of every position of prompts computed together, chunk by chunk."""
    longest = max(map(len, prompts))
    num_blocks = 8 * (-(-longest // block_size) + 2)
    cache = Cache(model, num_blocks=num_blocks, block_size=block_size)
    logits: list[list[Tensor]] = [[] for _ in prompts]
    for start in range(0, longest, chunk):
        chunks = {
            index: SequenceChunk(
                token_ids=prompt[start : start + chunk],
                start=start,
                block_ids=blocks_of(index, num_tokens=len(prompt), block_size=block_size),
            )
            for index, prompt in enumerate(prompts)
            if start < len(prompt)
        }
        rows = cache.run_all_rows(model, list(chunks.values()))
        lengths = [len(part.token_ids) for part in chunks.values()]
        for index, part in zip(chunks, rows.split(lengths), strict=True):
            logits[index].append(part)
    return [torch.cat(rows) for rows in logits]
