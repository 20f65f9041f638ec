"""Products with weights packed as fp16, by the library's FBGEMM kernels; sums in fp32.

bf16 weights have fewer bits than fp16, so packing keeps every weight above 2**-14 as it is and
rounds smaller ones to multiples of 2**-24. Against fp32 copies half the bytes are read, which is
what a step of few rows waits for, and half are kept.

The kernels take up to six rows at a time. Those for one and two rows add in another order than
those for three to six, so exact products are given rows that never end in a group of fewer than
three; ``row_rule_holds`` checks that on the machine at hand.

Shape letters: T = rows (tokens)   K = inner width   N = columns   S = leaves of a canonical sum
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from headrace.kernels.team import team_of

_KERNEL_ROWS = 6
_FEW_ROWS = 4
_MAX_WEIGHT = 65504.0

# Multiplications of a product that is worth sharing: waking a helper takes 100 us, in which one
# thread does about so many.
_MIN_SHARED_WORK = 1 << 23


class PackedWeight:
    """A weight in the library's own arrangement. Made by ``pack``; never modified.

    Attributes:
        num_columns: N.
    """

    __slots__ = ("_packed_NK", "num_columns")

    def __init__(self, packed_NK: Tensor, num_columns: int) -> None:
        self._packed_NK = packed_NK
        self.num_columns = num_columns

    def product(self, x_TK: Tensor) -> Tensor:
        """Multiply fp32 rows, contiguous: ``x @ weight.T`` in fp32, freshly allocated.

        Many rows are shared among threads, in whole groups of the kernel's.
        """
        num_threads, num_rows = torch.get_num_threads(), x_TK.shape[0]
        if num_threads == 1 or num_rows * x_TK.shape[1] * self.num_columns < _MIN_SHARED_WORK:
            return _multiply(x_TK, self._packed_NK, None)
        share = -(-num_rows // (num_threads * _KERNEL_ROWS)) * _KERNEL_ROWS
        out_TN = x_TK.new_empty((num_rows, self.num_columns))
        parts = zip(x_TK.split(share), out_TN.split(share), strict=True)
        team_of(num_threads).run([partial(self.product_into, *part) for part in parts])
        return out_TN

    def product_into(self, x_TK: Tensor, out_TN: Tensor) -> None:
        """Multiply fp32 rows into fp32 rows of the caller's, both contiguous."""
        _multiply_into(x_TK, self._packed_NK, None, output=out_TN)


def why_not_packed(dtype: torch.dtype, *, exact: bool) -> str | None:
    """Return why this machine cannot multiply with packed weights, or None if it can.

    Args:
        dtype: Of the model's weights.
        exact: For canonical products.
    """
    if dtype is not torch.bfloat16:
        return f"{dtype} weights would lose bits in fp16"
    if not _is_built_in():
        return "this build of torch has no FBGEMM"
    if exact and not row_rule_holds():
        return "its rows depend on each other on this machine"
    return None


def pack(weight_NK: Tensor) -> PackedWeight:
    """Pack one weight.

    Args:
        weight_NK: Any float dtype. Not modified, not kept.

    Raises:
        ValueError: A weight beyond fp16.
    """
    weight_NK = weight_NK.float().contiguous()
    if weight_NK.numel() and float(weight_NK.abs().amax()) > _MAX_WEIGHT:
        raise ValueError(f"a weight beyond {_MAX_WEIGHT:g} does not fit fp16")
    _silence_first_use()
    packed = torch.ops.aten.fbgemm_pack_gemm_matrix_fp16(weight_NK)
    return PackedWeight(packed, weight_NK.shape[0])


def num_padded_rows(num_rows: int) -> int:
    """Return the rows that an exact product of ``num_rows`` rows is given."""
    if num_rows <= _FEW_ROWS:
        return _FEW_ROWS if num_rows else 0
    return -(-num_rows // _KERNEL_ROWS) * _KERNEL_ROWS


def pad_packed_rows(x_TK: Tensor) -> Tensor:
    """Return contiguous fp32 rows, zero rows appended as exact products want them."""
    missing = num_padded_rows(x_TK.shape[0]) - x_TK.shape[0]
    if missing:
        x_TK = torch.constant_pad_nd(x_TK, (0, 0) * (x_TK.dim() - 1) + (0, missing))
    return x_TK.float().contiguous()


@cache
def row_rule_holds() -> bool:
    """Whether padded rows depend on themselves alone, and columns not on their neighbours.

    Measured once a process: a few hundred small products, some milliseconds.
    """
    generator = torch.Generator().manual_seed(0)
    for num_columns, width in ((64, 48), (80, 200), (48, 640)):
        weight_NK = torch.randn((num_columns, width), generator=generator).bfloat16()
        x_TK = torch.randn((42, width), generator=generator)
        whole_TN = pack(weight_NK).product(x_TK)
        for num_rows in range(1, 37):
            rows_TK = pad_packed_rows(x_TK[3 : 3 + num_rows])
            part_TN = pack(weight_NK[16:]).product(rows_TK)[:num_rows]
            if not torch.equal(part_TN, whole_TN[3 : 3 + num_rows, 16:]):
                return False
    return True


def _is_built_in() -> bool:
    try:
        pack(torch.ones(16, 16)).product(torch.ones(1, 16))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


@cache
def _silence_first_use() -> None:
    """Use both operators once with standard error closed to the library.

    They warn there once a process that they may be removed; ``why_not_packed`` copes with that.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        packed = torch.ops.aten.fbgemm_pack_gemm_matrix_fp16(torch.ones(16, 16))
        _multiply(torch.ones(1, 16), packed, None)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _absent(*_args: Tensor | None, **_named: Tensor) -> Tensor:
    raise NotImplementedError("this build of torch has no products with packed weights")


def _overload(name: str) -> Callable[..., Tensor]:
    """Return the overload itself: a packet would look it up at every call."""
    packet = getattr(torch.ops.aten, "fbgemm_linear_fp16_weight_fp32_activation", None)
    overload: Callable[..., Tensor] = _absent if packet is None else getattr(packet, name)
    return overload


_multiply, _multiply_into = _overload("default"), _overload("out")
