"""The same tiny model in the reference library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

# Not the reference library's constructor arguments.
_NOT_ARGUMENTS = ("architectures", "model_type", "torch_dtype")


def reference_model(data: dict[str, Any], weights: dict[str, Tensor]) -> torch.nn.Module:
    """Build the reference library's model of a ``config.json`` with our whole parameters."""
    kinds = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    }
    config_kind, model_kind = kinds[data["model_type"]]
    arguments = {key: value for key, value in data.items() if key not in _NOT_ARGUMENTS}
    model = model_kind(config_kind(**arguments, attn_implementation="eager")).float().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = ["lm_head.weight"] if data["tie_word_embeddings"] else []
    assert (missing, unexpected) == (tied, [])
    return model


@torch.no_grad()
def reference_logits(model: torch.nn.Module, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    return [model(torch.tensor([list(prompt)])).logits[0] for prompt in prompts]
