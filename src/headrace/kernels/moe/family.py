"""The families ``grouped_experts`` and ``combine`` of a device engine."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headrace.kernels.catalogue import Family, Site, Variant, accept_all, needs_triton

GroupedExperts = Callable[..., Tensor]
Combine = Callable[..., tuple[Tensor, Tensor]]

# Up to here few tokens share an expert.
MAX_PAIR_TOKENS = 4
# A program of the kernels for single pairs holds whole rows of a weight.
MAX_PAIR_WIDTH = 8192

# Above, experts have enough tokens for tiles with tokens on the wide side.
MAX_DECODE_TOKENS = 512


def _load_pair_triton() -> GroupedExperts:
    from headrace.kernels.moe.triton_pair import grouped_experts

    return grouped_experts


def _load_decode_triton() -> GroupedExperts:
    from headrace.kernels.moe.triton_decode import grouped_experts

    return grouped_experts


def _load_prefill_triton() -> GroupedExperts:
    from headrace.kernels.moe.triton_prefill import grouped_experts

    return grouped_experts


def _load_reference() -> GroupedExperts:
    from headrace.kernels.moe.grouped_reference import grouped_experts

    return grouped_experts


def _load_combine_triton() -> Combine:
    from headrace.kernels.moe.triton_combine import combine

    return combine


def _load_combine_reference() -> Combine:
    from headrace.kernels.moe.combine_reference import combine

    return combine


def decline_pair_triton(site: Site) -> str | None:
    """Say why the kernels for single pairs cannot, or should not, run at a site."""
    num_tokens = site.sizes.get("num_tokens", 0)
    if num_tokens > MAX_PAIR_TOKENS:
        return f"is for steps of at most {MAX_PAIR_TOKENS} tokens, these have {num_tokens}"
    widest = max(site.sizes.get("hidden", 0), site.sizes.get("expert_width", 0))
    if widest > MAX_PAIR_WIDTH:
        return f"holds rows of at most {MAX_PAIR_WIDTH} elements, these have {widest}"
    return needs_triton(site)


def decline_decode_triton(site: Site) -> str | None:
    """Say why the kernels for few tokens cannot run at a site."""
    num_tokens = site.sizes.get("num_tokens", 0)
    if num_tokens > MAX_DECODE_TOKENS:
        return f"is for steps of at most {MAX_DECODE_TOKENS} tokens, these have {num_tokens}"
    return needs_triton(site)


GROUPED_EXPERTS: Family[GroupedExperts] = Family(
    name="grouped_experts",
    summary="SwiGLU experts over the tokens that chose them",
    variants=(
        Variant(name="pair_triton", load=_load_pair_triton, decline=decline_pair_triton),
        Variant(name="decode_triton", load=_load_decode_triton, decline=decline_decode_triton),
        Variant(name="prefill_triton", load=_load_prefill_triton, decline=needs_triton),
        Variant(name="reference", load=_load_reference, decline=accept_all),
    ),
)

COMBINE: Family[Combine] = Family(
    name="combine",
    summary="weighted sum over a token's experts, residual add and norm",
    variants=(
        Variant(name="triton", load=_load_combine_triton, decline=needs_triton),
        Variant(name="reference", load=_load_combine_reference, decline=accept_all),
    ),
)
