"""Sizes of the released models that kernels are measured for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of one model, or of one rank's share of it.

    Attributes:
        name: Part of the cases' names.
        hidden: Width of the residual stream.
        num_heads: Query heads.
        num_kv_heads: KV heads.
        head_dim: Width of a head.
        num_experts: Experts of a layer.
        top_k: Experts of a token.
        expert_width: Width of an expert.
        vocab_size: Tokens of the vocabulary.
    """

    name: str
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int = 128
    num_experts: int = 128
    top_k: int = 8
    expert_width: int
    vocab_size: int = 151_936

    @property
    def query_width(self) -> int:
        """Elements of all query heads of a token."""
        return self.num_heads * self.head_dim

    def site_sizes(self, *, block_size: int = 64, **others: int) -> dict[str, int]:
        """Return what a ``Site`` says of an engine of this model, and of one call.

        Args:
            block_size: Tokens of a KV block.
            others: Further sizes, such as ``num_tokens``.
        """
        return {
            "head_dim": self.head_dim,
            "queries_per_kv": self.num_heads // self.num_kv_heads,
            "query_width": self.query_width,
            "qkv_width": self.query_width + 2 * self.num_kv_heads * self.head_dim,
            "block_size": block_size,
            "hidden": self.hidden,
            "num_experts": self.num_experts,
            "expert_width": self.expert_width,
            "top_k": self.top_k,
            "vocab_size": self.vocab_size,
            **others,
        }


QWEN3_30B_A3B = ModelShape(
    name="30b-a3b", hidden=2048, num_heads=32, num_kv_heads=4, expert_width=768
)
QWEN3_235B_A22B = ModelShape(
    name="235b-a22b", hidden=4096, num_heads=64, num_kv_heads=4, expert_width=1536
)
MODELS = (QWEN3_30B_A3B, QWEN3_235B_A22B)

# Rows of a step: decode batches up to a full one, then a long prompt.
STEP_TOKENS = (1, 8, 32, 128, 256, 6000)
