import pytest
import torch

from headrace.kernels.linear import Products
from tests.support.kernels_experts import random_experts, random_rows


@pytest.mark.parametrize("products", Products)
@pytest.mark.parametrize("parts", [range(4), range(1, 3)])
def test_every_way_of_multiplying_makes_the_same_subtrees(products: Products, parts: range) -> None:
    experts = random_experts(16, dtype=torch.bfloat16)
    batch = random_rows(20, 16, dtype=torch.bfloat16)
    expected = experts.bind(range(4, 12), parts)(*batch)
    ours = experts.bind(range(4, 12), parts, products=products, exact=False)(*batch)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected, rtol=0.05, atol=0.05)
