"""The family ``narrow_linear``: products of a step whose weight is too small for the library.

The choice is made for a number of rows, since that decides who is faster.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headrace.kernels.catalogue import Family, Site, Variant, accept_all, needs_triton

NarrowLinear = Callable[[Tensor, Tensor], Tensor]

# Weights of so few elements, as the gate's, gain with up to eight rows; larger ones with two.
SMALL_WEIGHT = 1 << 20
MAX_WEIGHT = 1 << 24
MAX_SPLIT_ROWS = 16


def _load_few_rows_triton() -> NarrowLinear:
    from headrace.kernels.linear.triton_few_rows import few_rows_linear

    return few_rows_linear


def _load_split_rows_triton() -> NarrowLinear:
    from headrace.kernels.linear.triton_split_rows import split_rows_linear

    return split_rows_linear


def _load_reference() -> NarrowLinear:
    from torch.nn.functional import linear

    return linear


def decline_few_rows(site: Site) -> str | None:
    """Say why the kernel for few rows cannot, or should not, run at a site."""
    rows, elements = site.sizes.get("num_tokens", 0), site.sizes.get("weight_elements", 0)
    most = 8 if elements <= SMALL_WEIGHT else 2
    if rows not in (1, 2, 4, 8) or rows > most or elements > MAX_WEIGHT:
        return f"is for {most} rows or fewer of a narrow weight, this is {rows} of {elements}"
    return needs_triton(site)


def decline_split_rows(site: Site) -> str | None:
    """Say why the kernel that splits the inner width cannot, or should not, run at a site."""
    rows, elements = site.sizes.get("num_tokens", 0), site.sizes.get("weight_elements", 0)
    if rows > MAX_SPLIT_ROWS or not SMALL_WEIGHT < elements <= MAX_WEIGHT:
        return f"is for {MAX_SPLIT_ROWS} rows of a middling weight, this is {rows} of {elements}"
    return needs_triton(site)


NARROW_LINEAR: Family[NarrowLinear] = Family(
    name="narrow_linear",
    summary="very few rows times a narrow weight",
    variants=(
        Variant(name="few_rows_triton", load=_load_few_rows_triton, decline=decline_few_rows),
        Variant(name="split_rows_triton", load=_load_split_rows_triton, decline=decline_split_rows),
        Variant(name="reference", load=_load_reference, decline=accept_all),
    ),
)
