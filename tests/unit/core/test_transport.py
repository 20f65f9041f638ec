"""Values that cross between plan, engine and transports."""

from __future__ import annotations

import numpy as np

from headrace.core.transport import CancelToken, Fragments


def test_total_bytes_is_the_sum_of_the_fragments() -> None:
    offsets = np.array([0, 64], dtype=np.int64)
    fragments = Fragments(offsets, offsets, np.array([16, 48], dtype=np.int64))
    assert fragments.total_bytes == 64


def test_a_cancel_token_is_set_once_and_stays_set() -> None:
    token = CancelToken()
    assert not token.is_cancelled()
    token.cancel()
    token.cancel()
    assert token.is_cancelled()
