"""Chained launches: a kernel that begins before the one before it in the stream has ended.

CUDA calls it programmatic dependent launch. A step of few rows is a row of short kernels, and what
costs is the ramp of each; a chained kernel is resident, and has its weights under way, when its
predecessor's results arrive. Three rules keep it right:

* Until ``wait_for_before`` returns, a kernel writes nothing, and reads only what was there before
  the last kernel that was launched plainly: weights, block tables, lengths, older KV. Its
  docstring names what it reads so early.
* Every program of it waits before it leaves, so that a kernel which has ended proves that all
  before it have.
* ``let_next_begin`` is a hint and says nothing about memory.

Elsewhere than on devices of capability 9 and up, the same kernels run in the plain order.
"""

from __future__ import annotations

import ctypes
import logging
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

log = logging.getLogger(__name__)

_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent


@triton.jit
def wait_for_before(CHAINED: tl.constexpr):
    """Wait until all kernels before this one have ended and what they wrote can be read."""
    if CHAINED:
        gdc_wait()


@triton.jit
def let_next_begin(CHAINED: tl.constexpr):
    """Let the next kernel take its place once every program of this one has come here."""
    if CHAINED:
        gdc_launch_dependents()


def launch(kernel: Any, grid: tuple[int, ...], *args: object, **named: object) -> None:
    """Launch a kernel that has a ``CHAINED`` parameter, chained where the device can.

    Args:
        kernel: A Triton function.
        grid: Of programs.
        args: The kernel's; the first is a tensor and says where.
        named: The kernel's, and launch options.
    """
    first = args[0]
    if not (isinstance(first, Tensor) and first.is_cuda and _can_chain(first.device)):
        kernel[grid](*args, CHAINED=False, **named)
        return
    compiled = kernel[grid](*args, CHAINED=True, launch_pdl=True, **named)
    if compiled is not None and compiled.function not in _spread:
        _spread_out(compiled.function)
        _spread.add(compiled.function)


@lru_cache(maxsize=16)
def _can_chain(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


# Handles of kernels that have been told, see ``_spread_out``.
_spread: set[int] = set()


def _spread_out(function: int) -> None:
    """Ask for the largest share of shared memory, whatever a kernel itself needs.

    A processor changes its share only when it is idle. A kernel that needs much, begun while one
    that needs little still runs, would crowd onto the processors that happen to be free: on an
    H200 160 programs of decode attention ran on 54 of 132.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    code = driver.cuFuncSetAttribute(ctypes.c_void_p(function), _CARVEOUT, 100)
    if code != 0:
        log.warning("cuFuncSetAttribute failed with %d: chained kernels may run slower", code)
