"""The kernels of one device model, bound once through the catalogue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.kernels.attention.family import DECODE_ATTENTION, PREFILL_ATTENTION
from headrace.kernels.catalogue import Choice, Family, Site, choose
from headrace.kernels.gate.family import ROUTE
from headrace.kernels.linear.family import NARROW_LINEAR
from headrace.kernels.moe.family import COMBINE, GROUPED_EXPERTS
from headrace.kernels.norm.family import ADD_RMS_NORM, RMS_NORM
from headrace.kernels.qkv.family import NORM_ROPE_WRITE
from headrace.models.config import ModelConfig

log = logging.getLogger(__name__)

Kernel = Callable[..., Any]

# Field of ``DeviceKernels`` -> its family, and the weight it multiplies with, as two size names.
FAMILIES: dict[str, tuple[Family[Any], tuple[str, str] | None]] = {
    "rms_norm": (RMS_NORM, None),
    "add_rms_norm": (ADD_RMS_NORM, None),
    "norm_rope_write": (NORM_ROPE_WRITE, None),
    "decode_attention": (DECODE_ATTENTION, None),
    "prefill_attention": (PREFILL_ATTENTION, None),
    "qkv_linear": (NARROW_LINEAR, ("hidden", "qkv_width")),
    "out_linear": (NARROW_LINEAR, ("hidden", "query_width")),
    "gate_linear": (NARROW_LINEAR, ("hidden", "num_experts")),
    "route": (ROUTE, None),
    "grouped_experts": (GROUPED_EXPERTS, None),
    "combine": (COMBINE, None),
}


# Not part of a decode step, or a library's own product, which a graph can hold.
_NOT_IN_GRAPHS = frozenset({"prefill_attention", "qkv_linear", "out_linear", "gate_linear"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKernels:
    """One function a place in the model; signatures are the families' own.

    Bound for a number of rows: see ``bind_kernels``.
    """

    rms_norm: Kernel
    add_rms_norm: Kernel
    norm_rope_write: Kernel
    decode_attention: Kernel
    prefill_attention: Kernel
    qkv_linear: Kernel
    out_linear: Kernel
    gate_linear: Kernel
    route: Kernel
    grouped_experts: Kernel
    combine: Kernel


def choose_kernels(site: Site, *, num_tokens: int) -> dict[str, Choice[Any]]:
    """Choose every family's variant for steps of ``num_tokens`` rows, padding included.

    Args:
        site: The engine's device and sizes.
        num_tokens: Kernels for few rows decline many, and the other way round.

    Raises:
        UnsupportedKernelError: A family has nothing for the site.
    """
    choices = {}
    for field, (family, weight) in FAMILIES.items():
        sizes = {**site.sizes, "num_tokens": num_tokens}
        if weight is not None:
            sizes["weight_elements"] = sizes.get(weight[0], 0) * sizes.get(weight[1], 0)
        choices[field] = choose(family, replace(site, sizes=sizes))
    return choices


def why_no_graph(site: Site, *, num_tokens: int) -> str | None:
    """Return which kernel keeps a decode step of so many rows out of a CUDA graph, or None.

    References may look at values on the host; no graph can hold that.
    """
    if site.device != "cuda":
        return f"the device is {site.device}"
    choices = choose_kernels(site, num_tokens=num_tokens)
    needed = {field: choice for field, choice in choices.items() if field not in _NOT_IN_GRAPHS}
    slow = [str(choice) for choice in needed.values() if choice.variant.name == "reference"]
    return "; ".join(slow) or None


def bind_kernels(site: Site, *, num_tokens: int) -> DeviceKernels:
    """Bind what ``choose_kernels`` chooses, and log each choice."""
    choices = choose_kernels(site, num_tokens=num_tokens)
    for field, choice in choices.items():
        log.debug("%d rows, %s: %s", num_tokens, field, choice)
    return DeviceKernels(**{field: choice.variant.load() for field, choice in choices.items()})


def model_sizes(config: ModelConfig, *, block_size: int) -> dict[str, int]:
    """Return the sizes by which kernels are chosen for a model; see ``Site``."""
    return {
        "head_dim": config.head_dim,
        "queries_per_kv": config.num_heads // config.num_kv_heads,
        "query_width": config.num_heads * config.head_dim,
        "qkv_width": (config.num_heads + 2 * config.num_kv_heads) * config.head_dim,
        "block_size": block_size,
        "hidden": config.hidden_size,
        "num_experts": config.num_experts,
        "expert_width": config.moe_intermediate_size,
        "top_k": config.top_k,
        "vocab_size": config.vocab_size,
    }
