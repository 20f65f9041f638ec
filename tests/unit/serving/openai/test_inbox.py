"""Where outputs of one HTTP request meet: in order, in batches, until all have ended."""

import asyncio

from headrace.core.messages import Output
from headrace.core.requests import FinishReason
from headrace.serving.fleet import Placement
from headrace.serving.openai.inbox import Call, Inbox


def make(*num_choices: int) -> tuple[Inbox, list[Call], list[Call]]:
    closed: list[Call] = []
    inbox = Inbox(closed.append)
    for i, n in enumerate(num_choices):
        at = Placement(address="a", replica="d", rank=0, generation=1, num_sequences=n)
        inbox.calls.append(Call(f"r{i}", at, inbox=inbox, started_s=0.0))
    return inbox, inbox.calls, closed


def output(choice: int, *, is_last: bool = False) -> Output:
    reason = FinishReason.STOP if is_last else None
    return Output(request_id="r", choice=choice, token_ids=[1], finish_reason=reason)


async def test_the_reader_gets_all_that_waits_at_once_under_the_clients_index() -> None:
    inbox, (first, second), _ = make(2, 1)
    first.push(output(1))
    second.push(output(0))
    first.push(output(0))
    batch = await anext(inbox)
    assert [index for index, _ in batch] == [1, 2, 0]
    assert inbox.num_waiting == 0


async def test_reading_ends_after_the_last_choice_of_the_last_call() -> None:
    inbox, (first, second), _ = make(1, 1)
    read: list[int] = []

    async def reader() -> None:
        async for batch in inbox:
            read.extend(index for index, _ in batch)

    task = asyncio.create_task(reader())
    await asyncio.sleep(0)
    first.push(output(0, is_last=True))
    await asyncio.sleep(0)
    assert not task.done()
    second.push(output(0, is_last=True))
    await asyncio.wait_for(task, 5)
    assert read == [0, 1]


async def test_hanging_up_ends_a_reader_that_waits() -> None:
    inbox, _, _ = make(1)

    async def reader() -> int:
        return len([batch async for batch in inbox])

    task = asyncio.create_task(reader())
    await asyncio.sleep(0)
    inbox.hang_up()
    assert await asyncio.wait_for(task, 5) == 0


async def test_a_failed_call_ends_its_unfinished_choices_only() -> None:
    inbox, (call,), _ = make(3)
    call.push(output(1, is_last=True))
    call.fail("rank died")
    ended = [(i, o.finish_reason, o.error) for i, o in await anext(inbox)]
    assert ended == [
        (1, FinishReason.STOP, ""),
        (0, FinishReason.ERROR, "rank died"),
        (2, FinishReason.ERROR, "rank died"),
    ]
    assert inbox.is_unavailable


async def test_closing_closes_every_call() -> None:
    inbox, calls, closed = make(1, 1)
    inbox.close()
    assert closed == calls
