"""Who is in which phase, and who is next."""

from __future__ import annotations

from headrace.core.messages import Submit
from headrace.core.requests import SamplingParams
from headrace.engine.roster import Roster
from headrace.engine.sequence import Phase, Sequence, make_sequences
from headrace.text.output import OutputTextStream
from tests.support.text_tokenizers import byte_tokenizer


def make(roster: Roster, name: str, num_choices: int = 1) -> list[Sequence]:
    submit = Submit(
        request_id=name,
        reply_to="edge",
        prompt_ids=[1, 2],
        params=SamplingParams(max_tokens=1),
        num_choices=num_choices,
    )
    sequences = make_sequences(
        submit,
        first_order=roster.take_orders(num_choices),
        now_s=0.0,
        vocab_size=300,
        open_text=lambda: OutputTextStream(byte_tokenizer()),
    )
    roster.add(sequences)
    return sequences


def test_the_oldest_waits_in_front() -> None:
    roster = Roster()
    (first,), (second,) = make(roster, "a"), make(roster, "b")
    assert roster.first_in_line() is first
    roster.move(first, Phase.RUNNING)
    assert roster.first_in_line() is second


def test_resumed_sequences_pass_new_ones() -> None:
    roster = Roster()
    (old,), (new,) = make(roster, "a"), make(roster, "b")
    new.is_resumed = True
    assert roster.first_in_line() is new
    old.is_resumed = True
    assert roster.first_in_line() is old


def test_only_choice_zero_waits_and_the_others_count_where_it_holds_blocks() -> None:
    roster = Roster()
    leader, *sisters = make(roster, "a", num_choices=3)
    assert roster.in_phase(Phase.WAITING) == [leader]
    assert roster.num_holding() == 0
    roster.move(leader, Phase.RECEIVING)
    assert roster.num_holding() == 3
    assert roster.take_sisters(leader) == sisters
    assert roster.take_sisters(leader) == []


def test_finished_sequences_are_forgotten() -> None:
    roster = Roster()
    leader, sister = make(roster, "a", num_choices=2)
    assert roster.of_request("a") == [leader, sister]
    roster.move(leader, Phase.FINISHED)
    assert roster.take_sisters(leader) == [], "a leader that ended keeps nobody waiting"
    roster.move(sister, Phase.FINISHED)
    assert len(roster) == 0
    assert "a/0" not in roster
    assert list(roster) == []
