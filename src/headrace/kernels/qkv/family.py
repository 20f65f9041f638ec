"""The family ``norm_rope_write``: from projected heads to queries and a written cache."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headrace.kernels.catalogue import Family, Site, Variant, accept_all, needs_triton

NormRopeWrite = Callable[..., Tensor]


def _load_triton() -> NormRopeWrite:
    from headrace.kernels.qkv.triton import norm_rope_write

    return norm_rope_write


def _load_reference() -> NormRopeWrite:
    from headrace.kernels.qkv.reference import norm_rope_write

    return norm_rope_write


def decline_triton(site: Site) -> str | None:
    """Say why the Triton kernel cannot run at a site: a half head is a power of two there."""
    head_dim = site.sizes.get("head_dim", 0)
    if head_dim < 2 or head_dim & (head_dim - 1):
        return f"needs a head_dim that is a power of two, this is {head_dim}"
    return needs_triton(site)


NORM_ROPE_WRITE: Family[NormRopeWrite] = Family(
    name="norm_rope_write",
    summary="QK-norm, RoPE and the write of keys and values to their slots",
    variants=(
        Variant(name="triton", load=_load_triton, decline=decline_triton),
        Variant(name="reference", load=_load_reference, decline=accept_all),
    ),
)
