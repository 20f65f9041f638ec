"""Stop strings end the text at the same place for every split, and are never shown in part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.stop import Checked, StopChecker

letters = st.text(alphabet="ab", max_size=14)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def run(pieces: list[str], stops: list[str], *, include_stop: bool = False) -> Checked:
    checker = StopChecker(stops, include_stop=include_stop)
    shown, stop = "", None
    for piece in pieces:
        checked = checker.push(piece)
        shown += checked.text
        stop = stop or checked.stop
    return Checked(shown + checker.finish(), stop)


def first_complete(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Return start and stop string of the match that is complete first, by trying every end."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return end - len(stop), stop
    return None


def test_without_stop_strings_text_passes_at_once():
    assert StopChecker([]).push("a\n") == ("a\n", None)


def test_a_stop_string_over_two_pushes_never_leaks():
    checker = StopChecker(["END"])
    assert checker.push("abcE") == ("abc", None)
    assert checker.push("ND more") == ("", "END")
    assert checker.push("after") == ("", None)
    assert checker.finish() == ""


def test_the_stop_string_is_shown_with_the_include_flag_and_nothing_behind_it():
    pieces = ["abcE", "ND more"]
    assert run(pieces, ["END"], include_stop=True) == ("abcEND", "END")


def test_a_newline_that_only_begins_a_stop_string_is_kept():
    checker = StopChecker(["\nEND"])
    assert [checker.push(each).text for each in "a\nb"] == ["a", "", "\nb"]
    assert run(["a\nb"], ["\nEND"]).text == "a\nb"
    assert run(["a\n"], ["\nEND"]).text == "a\n", "flushed when the sequence ends"


def test_held_text_that_restarts_a_stop_string_is_held_from_there():
    checker = StopChecker(["aab"])
    assert checker.push("aaa") == ("a", None)
    assert checker.push("b") == ("", "aab")


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stop"),
    [
        ("xabcy", ["bc", "abc"], "x", "abc"),  # complete together: the longest
        ("xabcy", ["abc", "ab"], "x", "ab"),  # complete first
        ("xabcdy", ["abcd", "bc"], "xa", "bc"),  # complete first, though it begins later
        ("a b", ["c", " "], "a", " "),
    ],
)
def test_the_stop_string_that_is_complete_first_wins(text, stops, shown, stop):
    assert run([text], stops) == (shown, stop)
    assert run(list(text), stops) == (shown, stop)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty stop string"):
        StopChecker(["a", ""])


@given(text=letters, stops=stop_lists, include_stop=st.booleans())
def test_the_shown_text_ends_at_the_first_complete_stop_string(text, stops, include_stop):
    found = first_complete(text, stops)
    expected = Checked(text)
    if found is not None:
        start, stop = found
        expected = Checked(text[: start + len(stop) * include_stop], stop)
    assert run([text], stops, include_stop=include_stop) == expected


@given(data=st.data(), text=letters, stops=stop_lists, include_stop=st.booleans())
def test_any_split_of_the_text_gives_the_same_result(data, text, stops, include_stop):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    whole = run([text], stops, include_stop=include_stop)
    assert run(pieces, stops, include_stop=include_stop) == whole


@given(text=letters, stops=stop_lists)
def test_exactly_what_may_still_become_a_stop_string_is_held_back(text, stops):
    checker, shown = StopChecker(stops), ""
    for end, letter in enumerate(text, start=1):
        checked = checker.push(letter)
        shown += checked.text
        if checked.stop:
            break
        held = text[len(shown) : end]
        suffixes = [text[start:end] for start in range(end + 1)]
        assert held == next(s for s in suffixes if not s or any(t.startswith(s) for t in stops))
