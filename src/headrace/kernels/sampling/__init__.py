"""Sampling: one token per row from logits, reproducible by (seed, position, token id)."""

from headrace.kernels.sampling.batch import SamplingBatch, SamplingRow
from headrace.kernels.sampling.counts import TokenCounts, needs_counts
from headrace.kernels.sampling.device_batch import DeviceSampled, DeviceSamplingBatch
from headrace.kernels.sampling.device_logprobs import device_top_logprobs
from headrace.kernels.sampling.device_settings import DeviceRow
from headrace.kernels.sampling.family import DEVICE_SAMPLE
from headrace.kernels.sampling.logprobs import SampledTokens
from headrace.kernels.sampling.noise import choice_seed
from headrace.kernels.sampling.reference import sample

__all__ = [
    "DEVICE_SAMPLE",
    "DeviceRow",
    "DeviceSampled",
    "DeviceSamplingBatch",
    "SampledTokens",
    "SamplingBatch",
    "SamplingRow",
    "TokenCounts",
    "choice_seed",
    "device_top_logprobs",
    "needs_counts",
    "sample",
]
