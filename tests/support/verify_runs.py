"""Runs as both sides of ``verify`` send them, with room for planted faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.cli.verify_compare import RUN_TOKENS, Run
from headrace.core.requests import Ledger

NUM_LAYERS = 3
NUM_PROMPT_TOKENS = 40
VOCAB_SIZE = 8
TOKENS = (5, 2, 7, 1)


def run(token_ids: tuple[int, ...] = TOKENS, *, num_prompt_tokens: int = NUM_PROMPT_TOKENS) -> Run:
    """Return a sound run of a disaggregated request; equal arguments, equal run."""
    return Run(
        token_ids=list(token_ids),
        logits=[_logits(step).tobytes() for step in range(len(token_ids))],
        kv_digests=[_digests(num_prompt_tokens + step) for step in range(len(token_ids))],
        ledger=ledger(num_prompt_tokens),
    )


def ledger(num_prompt_tokens: int = NUM_PROMPT_TOKENS) -> Ledger:
    """Return the ledger of a request whose prompt, but for its last token, came from elsewhere."""
    num_bytes = 64 * (num_prompt_tokens - 1)
    return Ledger(
        transferred_tokens=num_prompt_tokens - 1,
        computed_tokens=1,
        output_tokens=len(TOKENS),
        bytes_expected=num_bytes,
        bytes_received=num_bytes,
        num_sessions=1,
        prefill_replica="prefill0",
    )


def with_token(base: Run, position: int, token_id: int) -> Run:
    """Plant another token."""
    token_ids = list(base.token_ids)
    token_ids[position] = token_id
    return replace(base, token_ids=token_ids)


def with_logits(base: Run, position: int, change: dict[int, float]) -> Run:
    """Plant other logits at some token ids."""
    row = np.frombuffer(base.logits[position], np.float32).copy()
    for token_id, value in change.items():
        row[token_id] = value
    logits = list(base.logits)
    logits[position] = row.tobytes()
    return replace(base, logits=logits)


def with_flipped_bit(base: Run, position: int, token_id: int) -> Run:
    """Flip the lowest bit of one logit."""
    bits = np.frombuffer(base.logits[position], np.uint32).copy()
    bits[token_id] ^= 1
    logits = list(base.logits)
    logits[position] = bits.tobytes()
    return replace(base, logits=logits)


def with_kv(base: Run, layer: int, run: int, *, first_position: int = 0) -> Run:
    """Plant another digest in every step from ``first_position`` on."""
    kv = [[list(runs) for runs in step] for step in base.kv_digests]
    for step in kv[first_position:]:
        step[layer][run] = b"other"
    return replace(base, kv_digests=kv)


def _logits(step: int) -> np.ndarray:
    return np.sin(np.arange(VOCAB_SIZE, dtype=np.float32) + step) * 4


def _digests(num_tokens: int) -> list[list[bytes]]:
    num_runs = -(-num_tokens // RUN_TOKENS)
    # The last run grows with every step, and so does its digest.
    return [
        [
            b"%d/%d/%d" % (layer, run, min(num_tokens, (run + 1) * RUN_TOKENS))
            for run in range(num_runs)
        ]
        for layer in range(NUM_LAYERS)
    ]
