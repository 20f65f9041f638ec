"""From the names that files use to canonical parameters. Torch-free.

Three forms of the experts and several prefixes are around:

    model.layers.L.mlp.experts.E.{gate,up,down}_proj.weight    released files, per expert
    model.layers.L.mlp.experts.{gate_up_proj,down_proj}        fused over experts
    model.language_model.layers...                             text part of a vision model
    layers..., embed_tokens..., norm...                        saved from the bare decoder
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
_BARE = ("layers.", "embed_tokens.", "norm.")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_IGNORABLE = re.compile(r".*\.rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)")
# What only quantized files have: endings of names, and the scheme that writes them.
_QUANTIZED = {
    "weight_scale_inv": "block FP8",
    "weight_packed": "compressed-tensors",
    "qweight": "GPTQ or AWQ",
    "qzeros": "GPTQ or AWQ",
    "g_idx": "GPTQ",
    "weight_scale_2": "NVFP4",
    "weight_scale": "FP8",
    "input_scale": "FP8",
    "_blocks": "MXFP4",
    "_scales": "MXFP4",
    "absmax": "bitsandbytes",
}
_FLOAT8 = {"F8_E4M3": "FP8", "F8_E5M2": "FP8", "F8_E8M0": "MX", "U8": "4-bit", "I8": "INT8"}


class Kind(Enum):
    """What a tensor of a file is to this build."""

    PARAMETER = "parameter"
    IGNORABLE = "ignorable"  # recomputed from the config: rotary tables
    MTP = "mtp"  # draft layers, skipped by name


class Part(Enum):
    """Which part of its parameter a tensor fills."""

    WHOLE = "whole"
    GATE = "gate"  # first half of the rows of one expert
    UP = "up"  # second half
    DOWN = "down"  # one expert


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor of a file belongs.

    Attributes:
        kind: Whether it is a parameter at all.
        parameter: Canonical name, as in ``models.slices``.
        expert: Index of the expert; -1 for a whole parameter.
        part: Part of the parameter.
    """

    kind: Kind
    parameter: str
    expert: int = -1
    part: Part = Part.WHOLE


def place(name: str) -> Place:
    """Return where the tensor called ``name`` belongs; unknown names come back as they are.

    Example:
        >>> place("model.language_model.layers.3.mlp.experts.7.up_proj.weight").parameter
        'model.layers.3.mlp.experts.gate_up_proj'
    """
    if name.startswith("mtp.") or ".mtp." in name:
        return Place(kind=Kind.MTP, parameter=name)
    if _IGNORABLE.fullmatch(name):
        return Place(kind=Kind.IGNORABLE, parameter=name)
    name = _canonical_prefix(name)
    match = _EXPERT.fullmatch(name)
    if match is None:
        return Place(kind=Kind.PARAMETER, parameter=name)
    stem, expert, part = match.groups()
    fused = "down_proj" if part == "down" else "gate_up_proj"
    return Place(
        kind=Kind.PARAMETER, parameter=f"{stem}.{fused}", expert=int(expert), part=Part(part)
    )


def _canonical_prefix(name: str) -> str:
    if name in ("language_model.lm_head.weight", "model.lm_head.weight"):
        return "lm_head.weight"
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return "model." + name[len(prefix) :]
    return "model." + name if name.startswith(_BARE) else name


def quantization_of(name: str, dtype: str) -> str:
    """Return the scheme that a tensor's name or element type betrays, or an empty string."""
    if dtype in _FLOAT8:
        return _FLOAT8[dtype]
    ending = next((e for e in _QUANTIZED if name.endswith(e)), "")
    return _QUANTIZED[ending] if ending else ""
