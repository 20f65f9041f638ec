"""Prompts and settings that exactness tests share.

Token ids, not text, so that lengths are known: a prompt of one token (nothing to transfer), one
that ends on a block boundary, one past it, and one of several chunks.
"""

from __future__ import annotations

from headrace.core.requests import SamplingParams


def _ids(length: int, *, seed: int) -> list[int]:
    """Deterministic ids spread over the embedded model's ordinary vocabulary."""
    return [256 + (seed * 7919 + index * 104729) % 3000 for index in range(length)]


PROMPTS = (_ids(1, seed=1), _ids(33, seed=2), _ids(48, seed=3), _ids(150, seed=4))

GREEDY = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=32, temperature=1.0, top_p=0.95, seed=1234, ignore_eos=True)
SETTINGS = (GREEDY, SEEDED)
