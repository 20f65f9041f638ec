"""Chained launches: a kernel that begins before the one before it in the stream has ended.

CUDA calls it programmatic dependent launch. A step of few rows is a row of short kernels, and what
costs is the ramp of each; a chained kernel is resident, and has its weights under way, when its
predecessor's results arrive. Three rules keep it right:

* Until ``wait_for_before`` returns, a kernel reads only what no chained kernel writes (weights,
  block tables, lengths, older KV) and writes nothing. Its docstring names what it reads so early.
* Every program of it waits before it leaves, so that a kernel which has ended proves that all
  before it have.
* ``let_next_begin`` is a hint and says nothing about memory.

Elsewhere than on devices of capability 9 and up, the same kernels run in the plain order.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


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


@triton.jit
def fetch_ahead(pointers, num_bytes, CHAINED: tl.constexpr):
    """Ask for ``num_bytes`` behind each pointer to be brought into L2; multiples of 16, aligned."""
    if CHAINED:
        tl.inline_asm_elementwise(
            "{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
            "=r,l,r",
            [pointers.to(tl.int64), num_bytes],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def chain_options(tensor: Tensor) -> dict[str, bool]:
    """Return the launch options of a kernel with a ``CHAINED`` parameter, for a tensor's device."""
    if tensor.is_cuda and _can_chain(tensor.device):
        return {"CHAINED": True, "launch_pdl": True}
    return {"CHAINED": False}


@lru_cache(maxsize=16)
def _can_chain(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
