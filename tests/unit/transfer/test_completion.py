from headrace.transfer.completion import Outcome, finished


def test_an_outcome_is_unknown_until_it_is_set() -> None:
    outcome = Outcome()
    assert not outcome.is_done()
    assert outcome.error() == ""
    outcome.finish("lost")
    assert outcome.is_done()
    assert outcome.error() == "lost"


def test_success_is_an_empty_error() -> None:
    outcome = Outcome()
    outcome.finish()
    assert outcome.is_done()
    assert outcome.error() == ""


def test_what_is_over_already_says_how_it_ended() -> None:
    assert finished().is_done()
    assert finished("gone").error() == "gone"
