"""The catalogue chooses once, by order, and can say why."""

from collections.abc import Callable

import pytest

from headrace.core.errors import UnsupportedKernelError
from headrace.kernels.catalogue import (
    Family,
    Site,
    Variant,
    accept_all,
    bind,
    choose,
    needs_triton,
)

Answer = Callable[[], str]


def _variant(name: str, reason: str | None) -> Variant[Answer]:
    return Variant(name=name, load=lambda: lambda: name, decline=lambda site: reason)


def _family(*variants: Variant[Answer]) -> Family[Answer]:
    return Family(name="answer", summary="says its own name", variants=variants)


def test_the_first_variant_that_does_not_decline_is_bound() -> None:
    family = _family(_variant("fast", "too cold"), _variant("slow", None), _variant("other", None))
    assert bind(family, Site())() == "slow"


def test_a_choice_says_what_was_preferred_and_why_it_was_not_taken() -> None:
    family = _family(_variant("fast", "too cold"), _variant("slow", None))
    assert str(choose(family, Site())) == "answer: slow (not fast: too cold)"


def test_when_all_decline_the_error_names_each_reason() -> None:
    family = _family(_variant("fast", "too cold"), _variant("slow", "too warm"))
    with pytest.raises(UnsupportedKernelError, match=r"answer .*fast: too cold; slow: too warm"):
        bind(family, Site())


def test_a_variant_is_loaded_only_when_it_is_bound() -> None:
    def fail() -> Answer:
        raise AssertionError("loaded")

    unloadable: Variant[Answer] = Variant(name="fast", load=fail, decline=lambda site: "no")
    assert bind(_family(unloadable, _variant("slow", None)), Site())() == "slow"


def test_a_variant_is_found_by_name() -> None:
    family = _family(_variant("fast", None))
    assert family.variant("fast").name == "fast"
    with pytest.raises(KeyError):
        family.variant("slow")


def test_references_accept_every_site() -> None:
    assert accept_all(Site()) is None


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        (Site(), "needs a CUDA device"),
        (Site(device="cuda", capability=(7, 5)), "capability 8.0, this is 7.5"),
        (Site(device="cuda", capability=(9, 0)), "package triton"),
    ],
    ids=["cpu", "old", "no triton"],
)
def test_triton_says_why_it_cannot_run(site: Site, reason: str) -> None:
    assert reason in str(needs_triton(site))


def test_triton_runs_where_it_can() -> None:
    site = Site(device="cuda", capability=(9, 0), libraries=frozenset({"triton"}))
    assert needs_triton(site) is None
