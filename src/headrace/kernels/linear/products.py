"""Which way of multiplying with a model's weights a rank takes; chosen once, when it loads.

Exact products take the first way that can be, since every rank must take the same. Others take
the fastest of those that can be, by a measurement of some milliseconds on the machine at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from functools import cache

import torch
from torch import Tensor

from headrace.kernels.linear.packed import pack, why_not_packed

# The probe's weight is of a layer's size and many: reading them is what a decode step does.
_PROBE_WIDTH = 512
_PROBE_WEIGHTS = 16
_PROBE_ROWS = (1, 8)
_PROBE_REPEATS = 5


class Products(StrEnum):
    """How weights are kept and multiplied with.

    PACKED      fp16 in the library's arrangement, rows in fp32 (``packed.py``)
    WIDENED     fp32 copies, rows in fp32
    NATIVE      as they are, rows in the model's dtype
    """

    PACKED = "packed"
    WIDENED = "widened"
    NATIVE = "native"

    def row_dtype(self, dtype: torch.dtype, *, exact: bool) -> torch.dtype:
        """Return the dtype of activations between products of a model of ``dtype``.

        Exact mode rounds them where the reference library does, whatever the products.
        """
        return dtype if exact or self is Products.NATIVE else torch.float32


def choose_products(dtype: torch.dtype, *, exact: bool) -> Products:
    """Choose for a model of ``dtype``; see the module."""
    if dtype is torch.float32:
        return Products.WIDENED if exact else Products.NATIVE
    is_packable = why_not_packed(dtype, exact=exact) is None
    if exact:
        return Products.PACKED if is_packable else Products.WIDENED
    return _fastest(dtype, is_packable=is_packable, num_threads=torch.get_num_threads())


@cache
def _fastest(dtype: torch.dtype, *, is_packable: bool, num_threads: int) -> Products:
    """Return the way whose products of few rows take least time with that many threads."""
    shape = (_PROBE_WEIGHTS, _PROBE_WIDTH, _PROBE_WIDTH)
    weights = torch.ones(shape, dtype=dtype).unbind()
    widened = [weight.float() for weight in weights]
    ways: dict[Products, tuple[torch.dtype, list[Callable[[Tensor], Tensor]]]] = {
        Products.NATIVE: (dtype, [_linear(weight) for weight in weights]),
        Products.WIDENED: (torch.float32, [_linear(weight) for weight in widened]),
    }
    if is_packable:
        ways[Products.PACKED] = (torch.float32, [pack(weight).product for weight in weights])
    times_s = dict.fromkeys(ways, 0.0)
    for num_rows in _PROBE_ROWS:
        for way, (row_dtype, products) in ways.items():
            rows_TK = torch.ones((num_rows, _PROBE_WIDTH), dtype=row_dtype)
            times_s[way] += min(_time_s(products, rows_TK) for _ in range(_PROBE_REPEATS))
    return min(times_s, key=times_s.__getitem__)


def _linear(weight_NK: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x_TK: torch.nn.functional.linear(x_TK, weight_NK)


@torch.inference_mode()
def _time_s(products: list[Callable[[Tensor], Tensor]], rows_TK: Tensor) -> float:
    started_s = time.perf_counter()
    for product in products:
        product(rows_TK)
    return time.perf_counter() - started_s
