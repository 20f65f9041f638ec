"""The error tree has one root, and the two errors that carry more than a message keep it."""

import inspect

from headrace.core import errors


def test_one_clause_catches_everything_raised_on_purpose() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    assert len(classes) > 1
    assert all(issubclass(c, errors.HeadraceError) for c in classes)


def test_a_refused_request_says_where_and_with_which_status() -> None:
    error = errors.RequestError("n must be at least 1, got 0", param="n", status=422, code="range")
    assert (str(error), error.param) == ("n must be at least 1, got 0", "n")
    assert (error.status, error.code) == (422, "range")


def test_a_failed_session_names_its_rank() -> None:
    assert errors.SessionError("no heartbeat", rank=3).rank == 3
    assert errors.SessionError("no heartbeat").rank is None


def test_a_failed_collective_names_itself_and_the_missing() -> None:
    error = errors.CollectiveError("no", collective="agree", exchange=7, missing=(1, 2))
    assert (error.collective, error.exchange, error.missing) == ("agree", 7, (1, 2))
    assert isinstance(error, errors.ReplicaError)
