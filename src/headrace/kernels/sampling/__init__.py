"""Sampling: one token per row from fp32 logits, reproducible by (seed, position, token id)."""

from headrace.kernels.sampling.batch import SamplingBatch, SamplingRow
from headrace.kernels.sampling.counts import TokenCounts, needs_counts
from headrace.kernels.sampling.logprobs import SampledTokens
from headrace.kernels.sampling.noise import choice_seed
from headrace.kernels.sampling.reference import sample

__all__ = [
    "SampledTokens",
    "SamplingBatch",
    "SamplingRow",
    "TokenCounts",
    "choice_seed",
    "needs_counts",
    "sample",
]
