"""Products with weights packed as fp16, by the library's FBGEMM kernels; sums in fp32.

bf16 weights have fewer bits than fp16, so packing keeps every weight above 2**-14 as it is and
rounds smaller ones to multiples of 2**-24. Against fp32 copies half the bytes are read, which is
what a step of few rows waits for, and half are kept.

The kernels take a few rows at a time, and those for one and two rows add in another order than
those for more, so a product's rows may depend on how many there are. Exact products are given
numbers of rows that were found not to matter on the machine at hand (``RowRule``). Columns go by
sixteens or, with AVX-512, by thirty-twos, and what is left over goes another way: weights are
padded with zero columns, so that no column is ever left over, whatever slice a rank holds.

Shape letters: T = rows (tokens)   K = inner width   N = columns   S = leaves of a canonical sum
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from headrace.kernels.team import team_of

_MAX_WEIGHT = 65504.0

# The kernels' widest run of columns.
COLUMN_MULTIPLE = 32

# Numbers of rows that are tried one by one.
_MAX_FEW_ROWS = 64

# Multiplications of a product that is worth sharing: waking a helper takes 100 us, in which one
# thread does about so many.
_MIN_SHARED_WORK = 1 << 23


class PackedWeight:
    """A weight in the library's own arrangement. Made by ``pack``; never modified.

    Its products are shared by the team of as many threads as torch had when it was packed: a step
    of few rows may run torch's own operators in one thread and these in all.

    Attributes:
        num_columns: N.
    """

    __slots__ = ("_is_whole", "_packed_NK", "_team", "num_columns")

    def __init__(self, packed_NK: Tensor, num_columns: int) -> None:
        self._packed_NK = packed_NK
        self._team = team_of(torch.get_num_threads())
        self._is_whole = num_columns % COLUMN_MULTIPLE == 0
        self.num_columns = num_columns

    def product(self, x_TK: Tensor) -> Tensor:
        """Multiply fp32 rows, contiguous: ``x @ weight.T`` in fp32, freshly allocated.

        Many rows are shared among threads, in numbers that do not matter.
        """
        num_threads, num_rows = self._team.num_threads, x_TK.shape[0]
        if num_threads == 1 or num_rows * x_TK.shape[1] * self.num_columns < _MIN_SHARED_WORK:
            out_TN = _multiply(x_TK, self._packed_NK, None)
            return out_TN if self._is_whole else out_TN[:, : self.num_columns].contiguous()
        sizes = row_rule().shares(num_rows, num_threads)
        out_TN = x_TK.new_empty((num_rows, self.num_columns))
        parts = zip(x_TK.split(sizes), out_TN.split(sizes), strict=True)
        self._team.run([partial(self.product_into, *part) for part in parts])
        return out_TN

    def product_into(self, x_TK: Tensor, out_TN: Tensor) -> None:
        """Multiply fp32 rows into fp32 rows of the caller's, both contiguous."""
        if self._is_whole:
            _multiply_into(x_TK, self._packed_NK, None, output=out_TN)
        else:
            out_TN.copy_(_multiply(x_TK, self._packed_NK, None)[:, : self.num_columns])


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
    if exact and not row_rule().step:
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
    num_columns = weight_NK.shape[0]
    missing = -num_columns % COLUMN_MULTIPLE
    if missing:
        weight_NK = torch.constant_pad_nd(weight_NK, (0, 0, 0, missing))
    packed = torch.ops.aten.fbgemm_pack_gemm_matrix_fp16(weight_NK)
    return PackedWeight(packed, num_columns)


def num_padded_rows(num_rows: int) -> int:
    """Return the rows that an exact product of ``num_rows`` rows is given."""
    return row_rule().pad(num_rows)


def pad_packed_rows(x_TK: Tensor) -> Tensor:
    """Return contiguous fp32 rows, zero rows appended as exact products want them."""
    num_rows = x_TK.shape[0]
    num_padded = num_padded_rows(num_rows)
    if num_padded == num_rows:
        return x_TK.float().contiguous()
    padded_TK = x_TK.new_zeros((num_padded, *x_TK.shape[1:]), dtype=torch.float32)
    padded_TK[:num_rows] = x_TK
    return padded_TK


@dataclass(frozen=True, slots=True)
class RowRule:
    """Numbers of rows for which a row's bits do not depend on the number.

    Attributes:
        step: Every multiple of it is one; 0 when none was found.
        few: Those up to ``_MAX_FEW_ROWS``.
    """

    step: int
    few: frozenset[int]

    def pad(self, num_rows: int) -> int:
        """Return the least such number that is not below ``num_rows``."""
        while num_rows <= _MAX_FEW_ROWS:
            if num_rows in self.few or not num_rows:
                return num_rows
            num_rows += 1
        return -(-num_rows // self.step) * self.step

    def shares(self, num_rows: int, num_shares: int) -> list[int]:
        """Cut rows into as many such numbers as can be had, if their sum is one."""
        step = max(1, self.step)
        size = -(-num_rows // (num_shares * step)) * step
        rest = num_rows % size
        if rest and rest not in self.few and rest % step:
            return [num_rows]
        return [size] * (num_rows // size) + [rest] * bool(rest)


@cache
def row_rule() -> RowRule:
    """Find the rule: some hundred small products, measured once a process."""
    is_good = [False] + [True] * _MAX_FEW_ROWS
    generator = torch.Generator().manual_seed(0)
    cut = COLUMN_MULTIPLE
    for num_columns, width in ((2 * cut, 48), (3 * cut, 200), (2 * cut, 640)):
        weight_NK = torch.randn((num_columns, width), generator=generator).bfloat16()
        x_TK = torch.randn((_MAX_FEW_ROWS + 3, width), generator=generator)
        whole, part = pack(weight_NK), pack(weight_NK[cut:])
        # The middle one of three rows: every kernel but those for one and two rows has done it.
        expected_TN = torch.cat([whole.product(x_TK[i : i + 3])[1:2] for i in range(len(x_TK) - 2)])
        for num_rows in range(1, _MAX_FEW_ROWS + 1):
            rows_TK = x_TK[1 : 1 + num_rows].contiguous()
            is_good[num_rows] &= torch.equal(whole.product(rows_TK), expected_TN[:num_rows])
            is_good[num_rows] &= torch.equal(part.product(rows_TK), expected_TN[:num_rows, cut:])
    steps = (
        step
        for step in range(1, _MAX_FEW_ROWS // 4)
        if all(is_good[step : _MAX_FEW_ROWS + 1 : step])
    )
    few = frozenset(number for number, good in enumerate(is_good) if good)
    return RowRule(next(steps, 0), few)


@cache
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
