"""The family ``device_sample``: one token per row, drawn where the logits are."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from headrace.kernels.catalogue import Family, Site, Variant, accept_all, needs_triton
from headrace.kernels.sampling.device_batch import DeviceSampled, DeviceSamplingBatch

# Token ids share an int64 with the bits of their logit.
MAX_VOCAB_SIZE = 1 << 20


class DeviceSample(Protocol):
    """Signature of the family."""

    def __call__(
        self, logits_BV: Tensor, batch: DeviceSamplingBatch, *, out: DeviceSampled | None = None
    ) -> DeviceSampled:
        """Draw one token per row and advance the rows that drew.

        The meaning of the settings is that of ``reference.sample``, and so is the noise: the same
        (seed, position, token id) meets the same bits on every device. Log-probabilities are of
        the raw logits. A row that drew a token has its position advanced by one and, if it has a
        slot, the token counted there; the next call needs nothing from the host.

        Args:
            logits_BV: fp32 or bf16 logits as the model gave them, unit stride in V. Not modified.
            batch: Settings of the first B rows, on the same device; B is at most its capacity.
            out: Where the result goes; allocated when None.

        Returns:
            ``out`` if it was given.

        Raises:
            ValueError: The logits do not fit the batch.

        Guarantees:
            * A row's result depends, bit for bit, on its own logits, settings and seen tokens.
            * A row with NaN or infinite logits has ``ok`` False and token 0, and stays where it
              was; padding has ``ok`` True and token 0.
            * Equal logits: the lower id comes first, in greedy rows, top-k and top-p alike.
            * No host sync and, with ``out``, no allocation: can be captured in a CUDA graph.

        Numerics:
            Noise, weights and scores of the tokens that decide are float64, made of the same
            exactly rounded steps as on the CPU; fp32 only finds them. From equal logits a greedy,
            plain, min-p or top-k token therefore is the CPU's, except where three tokens of 4096
            come within about 2e-6 of each other and of winning: by estimate once in 1e11 draws.
            Top-p sums its masses in another order, to about 1e-6 of the whole, and may keep or
            drop the last token of the prefix otherwise than the CPU; that matters where this one
            token wins the race: by estimate less than once in 1e6 draws. The log-probability is
            good to about 1e-6. Estimates assume logits of float32 fineness.

        Cost:
            Memory bound for greedy rows: one reading of the logits. Plain rows: some hundred
            instructions per logit. Filtered rows read again the sub-blocks that hold their
            candidates: few for top-k, most of the row for top-p. Penalties read 2 bytes per
            logit. See ``costs/sampling.py``.

        Variants:
            triton (compute capability 8.0 and up), reference (any device; sorts every row).
        """
        ...


def _decline_triton(site: Site) -> str | None:
    if site.sizes.get("vocab_size", 0) > MAX_VOCAB_SIZE:
        return f"takes at most {MAX_VOCAB_SIZE} tokens, the vocabulary has more"
    return needs_triton(site)


def _load_triton() -> DeviceSample:
    from headrace.kernels.sampling.triton import device_sample

    return device_sample


def _load_reference() -> DeviceSample:
    from headrace.kernels.sampling.device_reference import device_sample

    return device_sample


DEVICE_SAMPLE: Family[DeviceSample] = Family(
    name="device_sample",
    summary="one token per row, drawn on the device without a host sync",
    variants=(
        Variant(name="triton", load=_load_triton, decline=_decline_triton),
        Variant(name="reference", load=_load_reference, decline=accept_all),
    ),
)
