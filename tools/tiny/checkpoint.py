"""Writes and reads the model's folder in the layout of a released Qwen3-MoE checkpoint.

``save`` makes the files that ``src/headrace/models/tiny/files`` holds; ``load`` reads them back
into this folder's own network, so that every figure is measured on what was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from tools.tiny.corpus import END_OF_TEXT, MARKUP_TOKENS, SPECIAL_TOKENS
from tools.tiny.network import Mtp, Target, TinyConfig

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
END_OF_TURN = "<|im_end|>"
# Our stacked expert parameters, and what released checkpoints call one expert's share.
EXPERT_NAMES = {
    "gate_proj_EIC": "gate_proj",
    "up_proj_EIC": "up_proj",
    "down_proj_ECI": "down_proj",
}


def save(directory: Path, target: Target, mtp: Mtp, *, tokenizer: Tokenizer) -> None:
    """Write weights (bf16), configurations and tokenizer; an existing folder is overwritten."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, module, prefix in (("model", target, "model."), ("mtp", mtp, "mtp.")):
        tensors = {key: value.to(torch.bfloat16) for key, value in released(module, prefix)}
        save_file(tensors, directory / f"{name}.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    for file, content in {
        "config.json": model_config(target.config, tokenizer),
        "generation_config.json": generation_config(tokenizer),
        "tokenizer_config.json": tokenizer_config(target.config, tokenizer),
    }.items():
        (directory / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load(directory: Path, device: torch.device) -> tuple[Target, Mtp, Tokenizer]:
    """Read a folder that ``save`` wrote; the weights are widened to float32."""
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = TinyConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        num_experts=raw["num_experts"],
        experts_per_token=raw["num_experts_per_tok"],
        expert_width=raw["moe_intermediate_size"],
        rms_norm_eps=raw["rms_norm_eps"],
        rope_theta=raw["rope_theta"],
        max_positions=raw["max_position_embeddings"],
    )
    target, mtp = Target(config), Mtp(config)
    for name, module, prefix in (("model", target, "model."), ("mtp", mtp, "mtp.")):
        fill(module, prefix, load_file(directory / f"{name}.safetensors"))
        module.to(device).eval()
    return target, mtp, Tokenizer.from_file(str(directory / "tokenizer.json"))


def released(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Parameters under their released names, stacked experts taken apart."""
    for name, value in module.state_dict().items():
        stem, _, leaf = name.rpartition(".")
        if leaf not in EXPERT_NAMES:
            yield prefix + name, value.detach().cpu().contiguous()
            continue
        for expert, weight in enumerate(value.detach().cpu()):
            # A copy: the slices share one storage, which safetensors refuses to write.
            yield f"{prefix}{stem}.experts.{expert}.{EXPERT_NAMES[leaf]}.weight", weight.clone()


def fill(module: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> None:
    """Inverse of ``released``; every tensor must be used and every parameter filled."""
    state = {}
    for name, value in module.state_dict().items():
        stem, _, leaf = name.rpartition(".")
        if leaf in EXPERT_NAMES:
            stack = f"{prefix}{stem}.experts.{{}}.{EXPERT_NAMES[leaf]}.weight"
            state[name] = torch.stack([tensors.pop(stack.format(e)) for e in range(len(value))])
        else:
            state[name] = tensors.pop(prefix + name)
    if tensors:
        raise ValueError(f"tensors that the network has no place for: {sorted(tensors)[:5]}")
    module.load_state_dict({name: value.float() for name, value in state.items()})


def model_config(config: TinyConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """``config.json`` in the spelling of the released checkpoints, which every engine reads."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "decoder_sparse_step": 1,
        "eos_token_id": tokenizer.token_to_id(END_OF_TURN),
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.experts_per_token * config.expert_width,
        "max_position_embeddings": config.max_positions,
        "max_window_layers": config.num_layers,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": config.expert_width,
        "norm_topk_prob": True,
        "num_attention_heads": config.num_heads,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "output_router_logits": False,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": config.rope_theta,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Stop tokens and default sampling, as Qwen3 ships them."""
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    return {
        "bos_token_id": end_of_text,
        "do_sample": True,
        "eos_token_id": [tokenizer.token_to_id(END_OF_TURN), end_of_text],
        "pad_token_id": end_of_text,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }


def tokenizer_config(config: TinyConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Settings beside ``tokenizer.json``, chat template included."""
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL_TOKENS,
        }
        for token in SPECIAL_TOKENS + MARKUP_TOKENS
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE.read_text(encoding="utf-8"),
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "errors": "replace",
        "model_max_length": config.max_positions,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        # Not Qwen2Tokenizer: transformers would rebuild that one with NFC normalisation.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
