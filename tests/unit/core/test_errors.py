"""The error tree has one root."""

from headrace.core.errors import HeadraceError


def test_one_clause_catches_what_headrace_expects_to_go_wrong() -> None:
    assert issubclass(HeadraceError, Exception)
