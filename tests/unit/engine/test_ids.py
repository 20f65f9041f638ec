"""An id outside its range is found, whichever way it is outside."""

import pytest

from headrace.engine.ids import outside


@pytest.mark.parametrize(
    ("ids", "found"),
    [([], None), ([0, 4], None), ([0, 5], 5), ([-1, 2], -1), ({2: 0.5, 2**40: 1.0}, 2**40)],
    ids=["none", "ends", "one past", "negative", "keys"],
)
def test_the_found_id_is_the_one_outside(ids, found) -> None:
    assert outside(ids, 5) == found


def test_an_empty_range_holds_nothing() -> None:
    assert outside([0], 0) == 0
