"""Compares what two deployments computed for the same request; pure, so that faults can be planted.

*Expected* is mono's run, *got* the deployment's. Only positions with equal histories are compared:
all outputs up to and including the first different token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from headrace.core.requests import Ledger

# Tokens that one KV digest covers (``Trace.kv_digests``).
RUN_TOKENS = 16

# Without exact sums two shardings round differently, and how much is a property of the model. These
# bounds tell a wrong result from a rounded one, relative to the largest logit of the row; they are
# a rule of thumb. docs/numerics.md has the sharp rule (teacher forcing) for the GPU path.
INEXACT_BOUNDS = {"float32": 2.0**-10, "bfloat16": 2.0**-4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One request as one side ran it; the lists have one entry per output token.

    Attributes:
        token_ids: Output tokens.
        logits: Raw fp32 logits of each step.
        kv_digests: The sequence's KV at each step, ``[step][layer][run of 16 tokens]``.
        ledger: The request's ledger.
    """

    token_ids: Sequence[int]
    logits: Sequence[bytes]
    kv_digests: Sequence[Sequence[Sequence[bytes]]]
    ledger: Ledger


class TokenGap(Struct, frozen=True, kw_only=True):
    """The first different token; None where a side had ended already."""

    position: int
    expected: int | None
    got: int | None


class LogitGap(Struct, frozen=True, kw_only=True):
    """The first step whose logits are not bit-equal.

    Attributes:
        position: Output position of the step.
        max_abs: Largest difference; 0 for zeros of unlike sign.
        token_id: Where it is.
        num_different: Logits of the step that are not bit-equal.
    """

    position: int
    max_abs: float
    token_id: int
    num_different: int


class KvGap(Struct, frozen=True, kw_only=True):
    """Where KV differs first: at the earliest step, in the lowest layer, in its earliest run.

    Attributes:
        position: Output position of the step.
        layer: Model layer.
        run: Run of 16 tokens of the sequence.
    """

    position: int
    layer: int
    run: int

    @property
    def first_token(self) -> int:
        """Position in the sequence of the run's first token."""
        return self.run * RUN_TOKENS


class Comparison(Struct, frozen=True, kw_only=True):
    """How far two runs of a request agree.

    Attributes:
        num_compared: Output positions with equal histories.
        token: First different token, if any.
        logits: First logits that are not bit-equal, if any.
        kv: Where KV differs first, if it does.
        max_abs: Largest difference of a logit over all compared positions.
        max_relative: Largest over positions of (largest difference) / (largest expected logit).
    """

    num_compared: int
    token: TokenGap | None = None
    logits: LogitGap | None = None
    kv: KvGap | None = None
    max_abs: float = 0.0
    max_relative: float = 0.0

    @property
    def is_identical(self) -> bool:
        """Whether tokens, logits and KV are equal bit for bit."""
        return self.token is None and self.logits is None and self.kv is None

    def is_within(self, bound: float) -> bool:
        """Whether tokens are equal, or logits close; what is asked without exact sums."""
        return self.token is None or self.max_relative <= bound


def compare_runs(expected: Run, got: Run) -> Comparison:
    """Compare two runs of one request, position by position, up to the first different token.

    Raises:
        ValueError: The two traces do not describe the same model.
    """
    token = _first_token_gap(expected.token_ids, got.token_ids)
    num_tokens = min(len(expected.token_ids), len(got.token_ids))
    num_compared = num_tokens if token is None else min(token.position + 1, num_tokens)
    first: LogitGap | None = None
    max_abs = max_relative = 0.0
    for position in range(num_compared):
        ours, theirs = (_row(run.logits[position]) for run in (got, expected))
        gap = _logit_gap(position, theirs, ours)
        if gap is None:
            continue
        first = first or gap
        max_abs = max(max_abs, gap.max_abs)
        max_relative = max(max_relative, gap.max_abs / max(float(np.abs(theirs).max()), 1e-30))
    return Comparison(
        num_compared=num_compared,
        token=token,
        logits=first,
        kv=_first_kv_gap(expected.kv_digests[:num_compared], got.kv_digests[:num_compared]),
        max_abs=max_abs,
        max_relative=max_relative,
    )


def disaggregation_faults(ledger: Ledger, num_prompt_tokens: int) -> list[str]:
    """Say what shows that a request was not prefilled elsewhere as it should have been.

    Args:
        ledger: Of the deployment's run.
        num_prompt_tokens: Tokens of the prompt.

    Returns:
        One line per fault; none when the decode rank computed at most the prompt's last token and
        every expected byte arrived.
    """
    faults = []
    if ledger.computed_tokens > 1:
        faults.append(
            f"{ledger.computed_tokens} prompt tokens were computed by the decode rank: "
            f"expected at most one"
        )
    if ledger.bytes_received != ledger.bytes_expected:
        faults.append(
            f"{ledger.bytes_received:,} bytes of KV received: expected {ledger.bytes_expected:,}"
        )
    if ledger.transferred_tokens and not ledger.bytes_received:
        faults.append(f"{ledger.transferred_tokens} tokens transferred, but no byte received")
    known = ledger.cached_tokens + ledger.transferred_tokens + ledger.computed_tokens
    if known != num_prompt_tokens:
        faults.append(f"the ledger tells of {known} prompt tokens: expected {num_prompt_tokens}")
    return faults


def _first_token_gap(expected: Sequence[int], got: Sequence[int]) -> TokenGap | None:
    for position in range(max(len(expected), len(got))):
        theirs = expected[position] if position < len(expected) else None
        ours = got[position] if position < len(got) else None
        if theirs != ours:
            return TokenGap(position=position, expected=theirs, got=ours)
    return None


def _row(logits: bytes) -> np.ndarray:
    return np.frombuffer(logits, np.float32)


def _logit_gap(position: int, expected: np.ndarray, got: np.ndarray) -> LogitGap | None:
    if expected.shape != got.shape:
        raise ValueError(f"rows of {len(expected)} and {len(got)} logits are of two models")
    differs = expected.view(np.uint32) != got.view(np.uint32)
    if not differs.any():
        return None
    # A NaN on one side is as far off as can be, and no comparison with it would say so.
    gaps = np.nan_to_num(np.abs(expected - got), nan=np.inf)
    worst = int(np.where(differs, gaps, -1.0).argmax())
    return LogitGap(
        position=position,
        max_abs=float(gaps[worst]),
        token_id=worst,
        num_different=int(differs.sum()),
    )


def _first_kv_gap(
    expected: Sequence[Sequence[Sequence[bytes]]], got: Sequence[Sequence[Sequence[bytes]]]
) -> KvGap | None:
    for position, (theirs, ours) in enumerate(zip(expected, got, strict=True)):
        if theirs == ours:
            continue
        for layer, (their_runs, our_runs) in enumerate(zip(theirs, ours, strict=True)):
            for run, (one, other) in enumerate(zip(their_runs, our_runs, strict=True)):
                if one != other:
                    return KvGap(position=position, layer=layer, run=run)
    return None
