import pytest
import torch

from headrace.kernels.linear import products
from headrace.kernels.linear.packed import why_not_packed
from headrace.kernels.linear.products import Products, choose_products


def test_fp32_models_multiply_with_what_they_have() -> None:
    assert choose_products(torch.float32, exact=True) is Products.WIDENED
    assert choose_products(torch.float32, exact=False) is Products.NATIVE


def test_exact_products_follow_a_rule_that_every_rank_can_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "_fastest", None)
    can_pack = why_not_packed(torch.bfloat16, exact=True) is None
    expected = Products.PACKED if can_pack else Products.WIDENED
    assert choose_products(torch.bfloat16, exact=True) is expected
    monkeypatch.setattr(products, "why_not_packed", lambda *_, **__: "not here")
    assert choose_products(torch.bfloat16, exact=True) is Products.WIDENED


def test_the_fastest_way_that_can_be_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_time_s", lambda _, rows: float(rows.dtype is torch.bfloat16))
    products._fastest.cache_clear()
    assert choose_products(torch.bfloat16, exact=False) is Products.WIDENED
    monkeypatch.setattr(products, "_time_s", lambda _, rows: float(rows.dtype is torch.float32))
    products._fastest.cache_clear()
    assert choose_products(torch.bfloat16, exact=False) is Products.NATIVE
    products._fastest.cache_clear()


def test_a_way_that_cannot_be_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "why_not_packed", lambda *_, **__: "not here")
    products._fastest.cache_clear()
    assert choose_products(torch.bfloat16, exact=False) is not Products.PACKED
    products._fastest.cache_clear()


def test_rows_are_wide_between_products_that_take_them_so() -> None:
    bf16 = torch.bfloat16
    assert Products.PACKED.row_dtype(bf16, exact=True) is bf16
    assert Products.PACKED.row_dtype(bf16, exact=False) is torch.float32
    assert Products.NATIVE.row_dtype(bf16, exact=False) is bf16
