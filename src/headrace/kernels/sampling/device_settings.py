"""A row's sampling settings as sixteen 64-bit words: how they travel to the device.

One row is one line of 128 bytes that every program of that row reads. It is encoded once, when
its sequence begins; a new batch composition copies lines and computes nothing.

Leaves out the position, which the device advances by itself; see ``device_batch.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling.noise import mix64, to_int64

NUM_WORDS = 16

# Words that hold integers.
KIND = 0
POSITION = 1
SEED = 2  # mixed once already: the first of the two rounds of `row_keys`
TOP_K = 3  # 0 keeps all
SLOT = 4  # row of the seen tokens; -1 for none
NUM_BIAS = 5
# Words that hold float64.
TEMPERATURE = 6
SCALE = 7  # log2(e) / temperature, cut to what fp32 holds
TOP_P = 8
MIN_P = 9
LOG_MIN_P = 10
PRESENCE = 11
FREQUENCY = 12
REPETITION = 13

# Far under any logit distance, and still finite after a product with a temperature.
NO_LOG_MIN_P = -1e30
_MAX_SCALE = 1e30


class RowKind(IntEnum):
    """How a row takes its token; a row of zeros is padding."""

    PADDING = 0
    GREEDY = 1
    PLAIN = 2
    FILTERED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One sequence's settings, encoded.

    Attributes:
        words: int64 ``[NUM_WORDS]``; the floats among them as their bits.
        bias_tokens: int32 token ids of the logit bias, ascending.
        bias_values: float32 amounts, in the same order.
    """

    words: NDArray[np.int64]
    bias_tokens: NDArray[np.int32]
    bias_values: NDArray[np.float32]

    @staticmethod
    def of(params: SamplingParams, *, seed: int, vocab_size: int, slot: int = -1) -> DeviceRow:
        """Encode the settings of one sequence.

        Args:
            params: The request's settings, taken as valid.
            seed: ``choice_seed(params.seed, choice)``.
            vocab_size: Vocabulary of the model; a top-k of all of it filters nothing.
            slot: Where its seen tokens are kept; needed exactly when ``needs_counts(params)``.
        """
        words = np.zeros(NUM_WORDS, dtype=np.int64)
        floats = words.view(np.float64)
        top_k = params.top_k if params.top_k < vocab_size else 0
        words[KIND] = _kind(params, top_k)
        words[SEED] = to_int64(mix64(seed))
        words[TOP_K] = top_k
        words[SLOT] = slot
        words[NUM_BIAS] = len(params.logit_bias)
        temperature = params.temperature if params.temperature > 0.0 else 1.0
        floats[TEMPERATURE] = temperature
        floats[SCALE] = min(math.log2(math.e) / temperature, _MAX_SCALE)
        floats[TOP_P] = params.top_p
        floats[MIN_P] = params.min_p
        floats[LOG_MIN_P] = math.log(params.min_p) if params.min_p > 0.0 else NO_LOG_MIN_P
        floats[PRESENCE] = params.presence_penalty
        floats[FREQUENCY] = params.frequency_penalty
        floats[REPETITION] = params.repetition_penalty
        bias = sorted(params.logit_bias.items())
        return DeviceRow(
            words=words,
            bias_tokens=np.array([token for token, _ in bias], dtype=np.int32),
            bias_values=np.array([value for _, value in bias], dtype=np.float32),
        )


def _kind(params: SamplingParams, top_k: int) -> RowKind:
    if params.temperature <= 0.0:
        return RowKind.GREEDY
    is_filtered = top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
    return RowKind.FILTERED if is_filtered else RowKind.PLAIN
