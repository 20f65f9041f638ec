"""Tiny random checkpoints in every released form, and a byte-level tokenizer to serve them with.

Plain safetensors and JSON: nothing here needs the reference library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from headrace.core.sharding import Role, Sharding
from headrace.models.config import ModelConfig, parse_config
from headrace.models.slices import weight_slices

# Qwen's special tokens in the order of their ids; the second group is shown to users.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VISIBLE_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
NUM_TOKENS = 256 + len(SPECIAL_TOKENS) + len(VISIBLE_TOKENS)
END_OF_TEXT, IM_START, IM_END = 256, 257, 258

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """Sizes of a tiny model; the defaults can be sharded 4 ways in every direction.

    Attributes:
        architecture: ``qwen3_moe`` or ``qwen3``.
        dtype: ``float32`` or ``bfloat16``: of the files and of ``config.json``.
        dense_layers: ``mlp_only_layers`` of a MoE model.
        seed: Of the random weights.
    """

    architecture: str = "qwen3_moe"
    dtype: str = "float32"
    vocab_size: int = 288
    hidden_size: int = 64
    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 16
    intermediate_size: int = 128
    num_experts: int = 8
    top_k: int = 2
    moe_intermediate_size: int = 64
    norm_topk_prob: bool = True
    dense_layers: tuple[int, ...] = ()
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    max_positions: int = 4096
    rope_theta: float = 10000.0
    yarn_factor: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a release spells a checkpoint.

    Attributes:
        experts: ``per_expert`` as released, or ``fused``.
        prefix: What stands before ``layers.0...``: ``model.``, ``model.language_model.`` or
            nothing.
        num_files: 1 writes ``model.safetensors``, more write shards and an index.
        experts_key: ``num_experts`` or ``num_local_experts``.
        new_keys: ``rope_parameters`` and ``dtype`` instead of ``rope_theta``, ``rope_scaling`` and
            ``torch_dtype``.
        rotary_tables: Add ``rotary_emb.inv_freq`` buffers, as old library versions did.
        tied_head: Save ``lm_head.weight`` although it is tied.
        mtp: Add draft-layer tensors: ``none``, ``inside`` the files or in a ``separate`` one.
    """

    experts: str = "per_expert"
    prefix: str = "model."
    num_files: int = 1
    experts_key: str = "num_experts"
    new_keys: bool = False
    rotary_tables: bool = False
    tied_head: bool = False
    mtp: str = "none"


RELEASED = Form()
FORMS = {
    "released": RELEASED,
    "sharded": Form(num_files=3),
    "fused": Form(experts="fused"),
    "vision-prefix": Form(prefix="model.language_model.", experts="fused"),
    "bare-prefix": Form(prefix=""),
    "new-keys": Form(experts_key="num_local_experts", new_keys=True),
    "old-leftovers": Form(rotary_tables=True, num_files=2),
    "mtp-inside": Form(mtp="inside"),
    "mtp-separate": Form(mtp="separate"),
}


def config_json(model: TinyModel, form: Form = RELEASED) -> dict[str, Any]:
    """Return the ``config.json`` of a model in one spelling."""
    is_moe = model.architecture == "qwen3_moe"
    scaling: dict[str, Any] = {}
    if model.yarn_factor:
        original = int(model.max_positions / model.yarn_factor)
        scaling = {
            "rope_type": "yarn",
            "factor": model.yarn_factor,
            "original_max_position_embeddings": original,
        }
    data: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM" if is_moe else "Qwen3ForCausalLM"],
        "model_type": model.architecture,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": model.max_positions,
        "attention_bias": model.attention_bias,
        "tie_word_embeddings": model.tie_word_embeddings,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": IM_END,
    }
    if form.new_keys:
        rope = {"rope_type": "default", "rope_theta": model.rope_theta, **scaling}
        data |= {"rope_parameters": rope, "dtype": model.dtype}
    else:
        data |= {"rope_theta": model.rope_theta, "torch_dtype": model.dtype}
        data |= {"rope_scaling": scaling or None}
    if is_moe:
        data |= {
            form.experts_key: model.num_experts,
            "num_experts_per_tok": model.top_k,
            "moe_intermediate_size": model.moe_intermediate_size,
            "norm_topk_prob": model.norm_topk_prob,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(model.dense_layers),
        }
    return data


def model_config(model: TinyModel) -> ModelConfig:
    """Return the parsed config of a tiny model."""
    return parse_config(config_json(model))


def random_weights(model: TinyModel) -> dict[str, Tensor]:
    """Return every canonical parameter, random and fixed by the seed, in the model's dtype."""
    generator = torch.Generator().manual_seed(model.seed)
    weights = {}
    for spec in weight_slices(model_config(model), Sharding(), Role.MONO, rank=0):
        values = torch.randn(spec.shape, generator=generator)
        if spec.name.endswith("norm.weight"):
            values = 1.0 + 0.1 * values
        elif not spec.name.endswith("embed_tokens.weight"):
            values = values / math.sqrt(spec.shape[-1])
        weights[spec.name] = values.to(getattr(torch, model.dtype))
    return weights


def file_tensors(weights: Mapping[str, Tensor], form: Form = RELEASED) -> dict[str, Tensor]:
    """Return canonical weights under the names and in the shapes of one released form."""
    tensors: dict[str, Tensor] = {}
    for name, values in weights.items():
        if ".experts." in name and form.experts == "per_expert":
            tensors |= _per_expert(name, values)
        else:
            tensors[name] = values
    if form.rotary_tables:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    if form.tied_head:
        tensors["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    renamed = {
        form.prefix + name.removeprefix("model.") if name.startswith("model.") else name: values
        for name, values in tensors.items()
    }
    if form.mtp == "inside":
        renamed |= mtp_tensors(weights)
    return {name: values.contiguous() for name, values in renamed.items()}


def _per_expert(name: str, values: Tensor) -> dict[str, Tensor]:
    stem, _, fused = name.rpartition(".")
    tensors = {}
    for expert, matrix in enumerate(values):
        if fused == "down_proj":
            tensors[f"{stem}.{expert}.down_proj.weight"] = matrix
        else:
            gate, up = matrix.chunk(2)
            tensors[f"{stem}.{expert}.gate_proj.weight"] = gate
            tensors[f"{stem}.{expert}.up_proj.weight"] = up
    return tensors


def mtp_tensors(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a few tensors under draft-layer names."""
    norm = weights["model.norm.weight"]
    return {
        "mtp.fc.weight": torch.zeros(len(norm), 2 * len(norm), dtype=norm.dtype),
        "mtp.norm.weight": norm.clone(),
        "mtp.layers.0.input_layernorm.weight": norm.clone(),
    }


def write_checkpoint(
    folder: Path, model: TinyModel, form: Form = RELEASED, *, tokenizer: bool = False
) -> dict[str, Tensor]:
    """Write a model folder and return its canonical weights.

    Args:
        folder: Made if absent.
        model: Sizes.
        form: Spelling.
        tokenizer: Also write ``tokenizer.json``, ``tokenizer_config.json`` (with a ChatML
            template) and ``generation_config.json``, so that the folder can be served.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = random_weights(model)
    tensors = file_tensors(weights, form)
    write_json(folder / "config.json", config_json(model, form))
    write_tensors(folder, tensors, num_files=form.num_files)
    if form.mtp == "separate":
        save_file(mtp_tensors(weights), folder / "mtp.safetensors", metadata={"format": "pt"})
    if tokenizer:
        write_tokenizer(folder)
    return weights


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], *, num_files: int = 1) -> None:
    """Write tensors as one file, or as shards with an index."""
    metadata = {"format": "pt"}
    if num_files == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata=metadata)
        return
    weight_map = {}
    for i in range(num_files):
        file = f"model-{i + 1:05}-of-{num_files:05}.safetensors"
        names = list(tensors)[i::num_files]
        save_file({name: tensors[name] for name in names}, folder / file, metadata=metadata)
        weight_map |= dict.fromkeys(names, file)
    total = sum(values.nbytes for values in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write one JSON object."""
    path.write_text(json.dumps(data, indent=2), encoding="utf-8")


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer without merges: token ids 0 to 255 are single bytes.

    Ids follow the byte-level alphabet's order, not the byte values; special tokens come after.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in VISIBLE_TOKENS])
    return tokenizer


def write_tokenizer(folder: Path, *, template_file: bool = False) -> None:
    """Write the byte-level tokenizer, its config, a ChatML template and a generation config.

    Args:
        folder: An existing folder.
        template_file: Put the template into ``chat_template.jinja`` instead of the config.
    """
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    if template_file:
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    else:
        config["chat_template"] = CHAT_TEMPLATE
    write_json(folder / "tokenizer_config.json", config)
    generation = {"eos_token_id": [IM_END, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    write_json(folder / "generation_config.json", generation)
