"""Where outputs of one HTTP request meet: in order, in batches, until all have ended."""

import asyncio

from headrace.core.messages import Output
from headrace.core.requests import FinishReason
from headrace.serving.openai.inbox import Inbox


def make(*num_choices: int) -> tuple[Inbox, list[int], list[int]]:
    """Return an inbox, the first index of each call, and the calls that were closed."""
    closed: list[int] = []
    inbox = Inbox()
    first = [inbox.join(n, lambda i=i: closed.append(i)) for i, n in enumerate(num_choices)]
    return inbox, first, closed


def output(*, is_last: bool = False) -> Output:
    reason = FinishReason.STOP if is_last else None
    return Output(request_id="r", choice=0, token_ids=[1], finish_reason=reason)


async def test_the_reader_gets_all_that_waits_at_once_under_the_clients_index() -> None:
    inbox, first, _ = make(2, 1)
    assert (first, inbox.num_choices) == ([0, 2], 3)
    for index in (1, 2, 0):
        inbox.push(index, output())
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
    inbox.push(first, output(is_last=True))
    await asyncio.sleep(0)
    assert not task.done()
    inbox.push(second, output(is_last=True))
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


async def test_closing_closes_every_call_once() -> None:
    inbox, _, closed = make(1, 1)
    inbox.close()
    inbox.close()
    assert closed == [0, 1]
