"""The families ``rms_norm`` and ``add_rms_norm`` of a device engine."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headrace.kernels.catalogue import Family, Variant, accept_all, needs_triton

RmsNorm = Callable[..., Tensor]
AddRmsNorm = Callable[..., tuple[Tensor, Tensor]]


def _load_rms_norm_triton() -> RmsNorm:
    from headrace.kernels.norm.triton import rms_norm

    return rms_norm


def _load_rms_norm_reference() -> RmsNorm:
    from headrace.kernels.norm.reference import rms_norm

    return rms_norm


def _load_add_rms_norm_triton() -> AddRmsNorm:
    from headrace.kernels.norm.triton import add_rms_norm

    return add_rms_norm


def _load_add_rms_norm_reference() -> AddRmsNorm:
    from headrace.kernels.norm.reference import add_rms_norm

    return add_rms_norm


RMS_NORM: Family[RmsNorm] = Family(
    name="rms_norm",
    summary="rows to unit mean square, times a weight",
    variants=(
        Variant(name="triton", load=_load_rms_norm_triton, decline=needs_triton),
        Variant(name="reference", load=_load_rms_norm_reference, decline=accept_all),
    ),
)

ADD_RMS_NORM: Family[AddRmsNorm] = Family(
    name="add_rms_norm",
    summary="a branch added to the residual stream, and the sum normed",
    variants=(
        Variant(name="triton", load=_load_add_rms_norm_triton, decline=needs_triton),
        Variant(name="reference", load=_load_add_rms_norm_reference, decline=accept_all),
    ),
)
