"""Every kernel family of a device engine: what there is to explain, to test and to measure."""

from __future__ import annotations

from typing import Any

from headrace.kernels.attention.family import DECODE_ATTENTION, PREFILL_ATTENTION
from headrace.kernels.catalogue import Family
from headrace.kernels.gate.family import ROUTE
from headrace.kernels.linear.family import NARROW_LINEAR
from headrace.kernels.moe.family import COMBINE, GROUPED_EXPERTS
from headrace.kernels.norm.family import ADD_RMS_NORM, RMS_NORM
from headrace.kernels.qkv.family import NORM_ROPE_WRITE
from headrace.kernels.sampling.family import DEVICE_SAMPLE

# In the order in which a layer, and then the head, calls them.
DEVICE_FAMILIES: tuple[Family[Any], ...] = (
    RMS_NORM,
    ADD_RMS_NORM,
    NORM_ROPE_WRITE,
    DECODE_ATTENTION,
    PREFILL_ATTENTION,
    NARROW_LINEAR,
    ROUTE,
    GROUPED_EXPERTS,
    COMBINE,
    DEVICE_SAMPLE,
)
