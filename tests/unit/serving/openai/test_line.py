"""Who waits for a replica: in order, and not for ever."""

import asyncio

from headrace.core.requests import SamplingParams
from headrace.serving.openai.call import Asked, Call
from headrace.serving.openai.inbox import Inbox
from headrace.serving.openai.line import Line


def make_call() -> Call:
    params = SamplingParams(max_tokens=1)
    asked = Asked(prompt_ids=[1], params=params, num_choices=1, ordinal=0, trace=False)
    return Call(asked, inbox=Inbox(), started_s=0.0, close=lambda _: None)


async def test_who_waits_longest_is_first() -> None:
    line = Line(wait_s=60.0, on_expired=lambda _: None)
    one, two, three = make_call(), make_call(), make_call()
    for call in (one, two, three):
        line.add(call)
    line.remove(two)
    assert (len(line), line.first) == (2, one)
    line.remove(one)
    assert line.first is three
    line.remove(three)
    assert line.first is None


async def test_a_wait_that_is_too_long_ends_and_one_that_ended_does_not() -> None:
    expired: asyncio.Queue[Call] = asyncio.Queue()
    line = Line(wait_s=0.01, on_expired=expired.put_nowait)
    one, two = make_call(), make_call()
    line.add(one)
    line.add(two)
    line.remove(one)
    assert await asyncio.wait_for(expired.get(), 10) is two
    assert len(line) == 0
    assert expired.empty()


async def test_removing_who_does_not_wait_is_nothing() -> None:
    Line(wait_s=1.0, on_expired=lambda _: None).remove(make_call())
