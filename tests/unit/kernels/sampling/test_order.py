"""The total order of tokens: greatest first, lowest id among equals, prefixes nested."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.sampling.order import top_tokens

LOGITS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 3.4e38, -3.4e38]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(st.lists(LOGITS, min_size=1, max_size=12), st.data())
def test_order_is_by_logit_then_id(logits: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(logits)))
    want = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    assert top_tokens(torch.tensor([logits]), k).tolist() == [want]


@pytest.mark.parametrize("num_values", [2, 1000])
def test_fewer_tokens_are_a_prefix_of_more(num_values: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x_RV = torch.randint(num_values, (3, 300), generator=generator).float()
    whole_RV = top_tokens(x_RV, 300)
    for k in (1, 2, 10, 299):
        assert torch.equal(top_tokens(x_RV, k), whole_RV[:, :k])


def test_ties_in_one_row_leave_the_others_alone() -> None:
    x_RV = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    alone = top_tokens(x_RV[:1], 5)
    x_RV[2] = 1.0
    together = top_tokens(x_RV, 5)
    assert torch.equal(together[:1], alone)
    assert together[2].tolist() == [0, 1, 2, 3, 4]
