"""A whole model in plain torch over given tokens: what a device engine's logits are judged by.

It shares no layer with the engines: no pool, no chunks, no kernels, no arranged weights. All
tokens of a sequence go through a layer at once, and only one layer at a time is held in the dtype
that is computed in, so that a large model can be run in float64 beside its bf16 weights.

Shape letters:
    T = tokens of all sequences   R = tokens of one sequence   L = rows that yield logits
    H = hidden width   V = vocabulary   X = heads * D   D = head dimension   K = experts of a token
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.core.errors import CheckpointError
from headrace.kernels.rope import YarnScaling, apply_rope, rope_table
from headrace.models.config import ModelConfig

Get = Callable[[str], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Tokens to run, and which of them yield logits.

    Attributes:
        token_ids: The sequence, without what follows its last row of logits.
        first: Index of the first token that yields logits; all after it do too.
    """

    token_ids: Sequence[int]
    first: int


@torch.inference_mode()
def teacher_logits(
    tensors: Mapping[str, Tensor],
    config: ModelConfig,
    lessons: Sequence[Lesson],
    *,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Run sequences through a model and return the logits of their last tokens.

    Args:
        tensors: Canonical name -> whole parameter, in any dtype and on any device. Not modified.
        config: The model.
        lessons: At least one token each, none past the longest context.
        dtype: What is computed in, weights included; norms and softmax in float32 at least.
        kv_dtype: What rotated keys and values are rounded to first; None for none.

    Returns:
        Per lesson ``[L, V]`` on the host, in float64.

    Raises:
        CheckpointError: The model has attention biases.

    Cost:
        One conversion of every parameter used; for an expert, only where a token goes there.
    """
    if config.attention_bias:
        raise CheckpointError("attention_bias=true: the plain torch path has no biases")
    device = tensors["model.norm.weight"].device
    lens = [len(lesson.token_ids) for lesson in lessons]

    def get(name: str) -> Tensor:
        return tensors[name].to(dtype)

    ids_T = torch.tensor([token for each in lessons for token in each.token_ids], device=device)
    stream_TH = tensors["model.embed_tokens.weight"][ids_T].to(dtype)
    turns = _turns(config, lens, dtype=dtype, device=device, kv_dtype=kv_dtype)
    for index in range(config.num_layers):
        prefix, eps = f"model.layers.{index}.", config.rms_norm_eps
        normed_TH = _norm(stream_TH, get(prefix + "input_layernorm.weight"), eps)
        stream_TH = stream_TH + _attention(get, prefix + "self_attn.", normed_TH, config, turns)
        normed_TH = _norm(stream_TH, get(prefix + "post_attention_layernorm.weight"), eps)
        mlp = _experts if config.is_moe_layer(index) else _dense
        stream_TH = stream_TH + mlp(tensors, prefix + "mlp.", normed_TH, config)
    is_tied = config.tie_word_embeddings
    head_VH = tensors["model.embed_tokens.weight" if is_tied else "lm_head.weight"]
    normed_TH = _norm(stream_TH, get("model.norm.weight"), config.rms_norm_eps)
    return [
        _head(normed_RH[lesson.first :], head_VH)
        for normed_RH, lesson in zip(normed_TH.split(lens), lessons, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Turns:
    """Lengths of the sequences, the rotation of every token, and what is kept of its KV."""

    lens: list[int]
    cos_T1D: Tensor
    sin_T1D: Tensor
    kv_dtype: torch.dtype | None

    def keep(self, x_TGD: Tensor) -> Tensor:
        """Round as a cache would."""
        if self.kv_dtype is None:
            return x_TGD
        largest = torch.finfo(self.kv_dtype).max
        return x_TGD.clamp(-largest, largest).to(self.kv_dtype).to(x_TGD.dtype)


def _turns(
    config: ModelConfig,
    lens: list[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    kv_dtype: torch.dtype | None,
) -> _Turns:
    yarn = YarnScaling(**msgspec.structs.asdict(config.yarn)) if config.yarn else None
    # The angles are fp32 by the model's definition, whatever is computed in.
    table = rope_table(config.head_dim, max(lens), theta=config.rope_theta, yarn=yarn, dtype=dtype)
    cos_T1D, sin_T1D = table.rows(torch.cat([torch.arange(length) for length in lens]))
    return _Turns(lens, cos_T1D.to(device), sin_T1D.to(device), kv_dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _norm(x_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    wide = _wide(x_TH)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x_TH.dtype) * weight_H


def _attention(
    get: Get, prefix: str, normed_TH: Tensor, config: ModelConfig, turns: _Turns
) -> Tensor:
    def project(name: str) -> Tensor:
        return F.linear(normed_TH, get(f"{prefix}{name}_proj.weight")).unflatten(
            1, (-1, config.head_dim)
        )

    def rotate(name: str) -> Tensor:
        heads = _norm(project(name), get(f"{prefix}{name}_norm.weight"), config.rms_norm_eps)
        return apply_rope(heads, turns.cos_T1D, turns.sin_T1D)

    queries, keys, values = rotate("q"), turns.keep(rotate("k")), turns.keep(project("v"))
    times = config.num_heads // config.num_kv_heads
    parts = []
    for q, k, v in zip(*(each.split(turns.lens) for each in (queries, keys, values)), strict=True):
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1).repeat_interleave(times, 0)[None],
            v.transpose(0, 1).repeat_interleave(times, 0)[None],
            is_causal=True,
        )
        parts.append(attended[0].transpose(0, 1).flatten(1))
    return F.linear(torch.cat(parts), get(prefix + "o_proj.weight"))


def _dense(
    tensors: Mapping[str, Tensor], prefix: str, normed_TH: Tensor, config: ModelConfig
) -> Tensor:
    gate, up, down = (
        tensors[f"{prefix}{name}_proj.weight"].to(normed_TH.dtype)
        for name in ("gate", "up", "down")
    )
    return F.linear(F.silu(F.linear(normed_TH, gate)) * F.linear(normed_TH, up), down)


def _experts(
    tensors: Mapping[str, Tensor], prefix: str, normed_TH: Tensor, config: ModelConfig
) -> Tensor:
    dtype = normed_TH.dtype
    gate_up = tensors[prefix + "experts.gate_up_proj"]
    down = tensors[prefix + "experts.down_proj"]
    logits_TE = F.linear(normed_TH, tensors[prefix + "gate.weight"].to(dtype))
    scores_TK, ids_TK = torch.softmax(_wide(logits_TE), -1).topk(config.top_k)
    if config.norm_topk_prob:
        scores_TK = scores_TK / scores_TK.sum(-1, keepdim=True)
    scores_TK = scores_TK.to(dtype)
    sums_TH = torch.zeros_like(_wide(normed_TH))
    for expert in ids_TK.unique().tolist():
        rows, places = (ids_TK == expert).nonzero(as_tuple=True)
        gate, up = F.linear(normed_TH[rows], gate_up[expert].to(dtype)).chunk(2, -1)
        out = F.linear(F.silu(gate) * up, down[expert].to(dtype))
        sums_TH.index_add_(0, rows, _wide(out * scores_TK[rows, places, None]))
    return sums_TH.to(dtype)


def _head(normed_LH: Tensor, head_VH: Tensor) -> Tensor:
    """Multiply by the head in float32 at least, some rows of it at a time."""
    wide_LH = _wide(normed_LH)
    parts = [F.linear(wide_LH, part.to(wide_LH.dtype)) for part in head_VH.split(1 << 14)]
    return torch.cat(parts, -1).double().cpu()
