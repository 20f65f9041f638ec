"""What a supervisor says of a rank's end."""

import pytest

from headrace.cluster.events import Hooks, RankExited


@pytest.mark.parametrize(
    ("exit_code", "lines", "text"),
    [
        (3, (), "decode0.1 ended with exit code 3"),
        (0, ("first", "last"), "decode0.1 ended with exit code 0; its last line: last"),
        (-9, (), "decode0.1 was ended by SIGKILL"),
    ],
)
def test_an_exit_reads_as_one_line(exit_code, lines, text):
    assert str(RankExited(name="decode0.1", exit_code=exit_code, last_lines=lines)) == text


def test_the_moment_comes_before_the_last_line():
    ended = RankExited(name="decode0.1", exit_code=1, last_lines=("oh",))
    assert ended.describe(" at dawn") == (
        "decode0.1 ended with exit code 1 at dawn; its last line: oh"
    )


def test_hooks_not_given_hear_nothing():
    hooks = Hooks()
    assert hooks.on_line("decode0.1", "text") is None
