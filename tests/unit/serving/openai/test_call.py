"""What a client has of a request, and what the next decode rank is told of it."""

from headrace.core.messages import Output, Resumed
from headrace.core.requests import FinishReason, Ledger, SamplingParams
from headrace.serving.fleet import Placement
from headrace.serving.openai.call import Asked, Attempt, Call
from headrace.serving.openai.inbox import Inbox

PARAMS = SamplingParams(max_tokens=9)
AT = Placement(address="a", replica="d", rank=0, generation=1, prefill_replica="p")


def make(num_choices: int = 1, *, inbox: Inbox | None = None) -> tuple[Call, list[Call]]:
    closed: list[Call] = []
    asked = Asked(prompt_ids=[1, 2], params=PARAMS, num_choices=num_choices, ordinal=7, trace=True)
    call = Call(asked, inbox=inbox or Inbox(), started_s=0.0, close=closed.append)
    return call, closed


def output(choice: int, *ids: int, is_last: bool = False, ledger: Ledger | None = None) -> Output:
    reason = FinishReason.STOP if is_last else None
    return Output(
        request_id="r", choice=choice, token_ids=list(ids), finish_reason=reason, ledger=ledger
    )


def told(call: Call, name: str = "e-7"):
    attempt = Attempt(request_id=name, placement=AT)
    return call.message(attempt, reply_to="edge", deadline_s=3.0, max_retries=5)


def test_a_new_request_is_told_whole() -> None:
    call, _ = make(2)
    submit = told(call)
    assert (submit.request_id, submit.reply_to, submit.deadline_s) == ("e-7", "edge", 3.0)
    assert submit.max_retries == 5
    assert (submit.prompt_ids, submit.params, submit.num_choices) == ([1, 2], PARAMS, 2)
    assert (submit.prefill_replica, submit.ordinal, submit.trace) == ("p", 7, True)
    assert (submit.resumed, submit.num_retries) == ([], 0)


async def test_the_next_rank_is_told_what_the_client_has_of_unfinished_choices() -> None:
    call, _ = make(3)
    cost = Ledger(cached_tokens=1)
    for each in (output(0, 5, ledger=cost), output(1, 6, is_last=True), output(0, 8, 9)):
        call.push(each)
    call.lose("rank died")
    submit = told(call, "e-7.1")
    assert submit.num_choices == 3
    assert submit.resumed == [
        Resumed(choice=0, output_ids=[5, 8, 9], ledger=cost),
        Resumed(choice=2, output_ids=[]),
    ]
    assert (submit.num_retries, submit.ordinal, call.lost) == (1, 7, "rank died")


async def test_retries_that_a_decode_rank_made_count_too() -> None:
    call, _ = make()
    call.push(output(0, 5, ledger=Ledger(num_retries=1)))
    call.lose("rank died")
    assert told(call).num_retries == 2


async def test_failing_ends_unfinished_choices_only() -> None:
    inbox = Inbox()
    make(2, inbox=inbox)
    call, _ = make(3, inbox=inbox)
    call.push(output(1, 5, is_last=True))
    call.fail("rank died")
    ended = [(i, o.finish_reason, o.error) for i, o in await anext(inbox)]
    assert ended == [
        (3, FinishReason.STOP, ""),
        (2, FinishReason.ERROR, "rank died"),
        (4, FinishReason.ERROR, "rank died"),
    ]
    assert inbox.is_unavailable
    assert not call.unfinished


async def test_closing_the_inbox_closes_the_call() -> None:
    inbox = Inbox()
    call, closed = make(inbox=inbox)
    inbox.close()
    assert closed == [call]
