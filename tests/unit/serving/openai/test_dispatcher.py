"""Requests reach their rank, outputs their reader; what nobody reads is aborted."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.core.codec import Codec
from headrace.core.errors import RequestError
from headrace.core.messages import Abort, Output, Outputs, RankInfo, Submit
from headrace.core.requests import FinishReason, Ledger, SamplingParams
from headrace.serving.openai.call import Call
from headrace.serving.openai.dispatcher import Dispatcher
from headrace.serving.openai.inbox import Inbox
from headrace.transfer.control import AsyncControlSocket
from tests.support.serving_fakes import EDGE, ManualClock, Stack, beat, make_stack, topology

PARAMS = SamplingParams(max_tokens=4)


def nothing(_: object) -> Any:
    return iter(())


@pytest.fixture
def stack() -> Stack:
    return make_stack(nothing, clock=ManualClock(), max_requests=3, max_backlog=4)


@pytest.fixture
def dispatcher(stack: Stack) -> Dispatcher:
    return stack.front.dispatcher


def send(dispatcher: Dispatcher, *outputs: Output) -> None:
    dispatcher.on_message(Outputs(rank=0, outputs=list(outputs)))


def output(request_id: str, *, choice: int = 0, is_last: bool = False, tokens: int = 1) -> Output:
    reason = FinishReason.STOP if is_last else None
    return Output(
        request_id=request_id,
        choice=choice,
        token_ids=[1] * tokens,
        finish_reason=reason,
        ledger=Ledger(queue_s=0.25, cached_tokens=3, bytes_received=64) if is_last else None,
    )


def name(call: Call) -> str:
    """Return the id of a call's attempt."""
    assert call.attempt is not None
    return call.attempt.request_id


async def read(inbox: Inbox) -> list[tuple[int, Output]]:
    return await anext(inbox)


async def test_a_request_goes_to_its_rank_with_all_it_needs(
    stack: Stack, dispatcher: Dispatcher
) -> None:
    request_id = name(
        dispatcher.submit(dispatcher.open(), [1, 2], PARAMS, num_choices=2, trace=True)
    )
    (submit,) = stack.engine.submits
    assert stack.engine.addresses == ["ipc://decode0.0.1"]
    assert (submit.request_id, submit.reply_to) == (request_id, EDGE)
    assert (submit.prompt_ids, submit.params, submit.num_choices) == ([1, 2], PARAMS, 2)
    assert (submit.prefill_replica, submit.ordinal, submit.trace) == ("prefill0", 0, True)


async def test_no_two_requests_ever_share_a_name(stack: Stack, dispatcher: Dispatcher) -> None:
    other = make_stack(nothing).front.dispatcher
    names = [name(each.submit(each.open(), [1], PARAMS)) for each in (dispatcher, other) * 2]
    assert len(set(names)) == 4
    assert [submit.ordinal for submit in stack.engine.submits] == [0, 1]


async def test_outputs_reach_their_own_reader(dispatcher: Dispatcher) -> None:
    inboxes = [dispatcher.open(), dispatcher.open()]
    first, second = (dispatcher.submit(inbox, [1], PARAMS) for inbox in inboxes)
    send(dispatcher, output(name(second)), output(name(first), tokens=2))
    assert [len(o.token_ids) for _, o in await read(inboxes[0])] == [2]
    assert [len(o.token_ids) for _, o in await read(inboxes[1])] == [1]


async def test_closing_an_unfinished_call_aborts_it_once(
    stack: Stack, dispatcher: Dispatcher
) -> None:
    inbox = dispatcher.open()
    request_id = name(dispatcher.submit(inbox, [1], PARAMS))
    inbox.close()
    inbox.close()
    assert stack.engine.aborts == [request_id]
    assert dispatcher.num_calls == 0
    assert stack.front.metrics.num_aborts == 1
    send(dispatcher, output(request_id))
    assert stack.front.metrics.num_late_outputs == 1


async def test_closing_a_finished_call_aborts_nothing(stack: Stack, dispatcher: Dispatcher) -> None:
    inbox = dispatcher.open()
    request_id = name(dispatcher.submit(inbox, [1], PARAMS))
    send(dispatcher, output(request_id, is_last=True))
    inbox.close()
    assert stack.engine.aborts == []


async def test_an_abort_that_a_full_queue_refused_is_sent_with_the_next_sign_of_life(
    stack: Stack, dispatcher: Dispatcher
) -> None:
    inbox = dispatcher.open()
    request_id = name(dispatcher.submit(inbox, [1], PARAMS))
    stack.engine.is_full = True
    inbox.close()
    assert stack.engine.aborts == []
    stack.engine.is_full = False
    dispatcher.on_message(beat("decode0", 0))
    assert stack.engine.aborts == [request_id]


async def test_a_rank_that_takes_no_more_is_an_answer_and_leaves_no_call(
    stack: Stack, dispatcher: Dispatcher
) -> None:
    stack.engine.is_full = True
    inbox = dispatcher.open()
    with pytest.raises(RequestError, match=r"decode0\.0 takes no more") as caught:
        dispatcher.submit(inbox, [1], PARAMS)
    assert caught.value.status == 503
    inbox.close()
    assert dispatcher.num_calls == 0


async def test_requests_in_flight_are_bounded(dispatcher: Dispatcher) -> None:
    inboxes = [dispatcher.open() for _ in range(4)]
    for inbox in inboxes[:3]:
        dispatcher.submit(inbox, [1], PARAMS)
    with pytest.raises(RequestError, match="3 requests are in flight, the limit is 3"):
        dispatcher.submit(inboxes[3], [1], PARAMS)
    inboxes[0].close()
    dispatcher.submit(inboxes[3], [1], PARAMS)


async def test_a_reader_that_never_reads_is_given_up(stack: Stack, dispatcher: Dispatcher) -> None:
    inbox = dispatcher.open()
    request_id = name(dispatcher.submit(inbox, [1], PARAMS))
    for _ in range(9):
        send(dispatcher, output(request_id))
    assert stack.engine.aborts == [request_id]
    batch = await read(inbox)
    assert len(batch) == 6
    assert "slow reader" in batch[-1][1].error


async def test_stopping_ends_open_calls_and_accepts_no_more(
    stack: Stack, dispatcher: Dispatcher
) -> None:
    inbox = dispatcher.open()
    request_id = name(dispatcher.submit(inbox, [1], PARAMS))
    dispatcher.fail_all("the server is stopping")
    assert stack.engine.aborts == [request_id]
    assert (await read(inbox))[0][1].error == "the server is stopping"
    with pytest.raises(RequestError, match="stopping"):
        dispatcher.submit(inbox, [1], PARAMS)


async def test_times_and_ledgers_are_measured(stack: Stack, dispatcher: Dispatcher) -> None:
    clock, metrics = stack.front.dispatcher._clock, stack.front.metrics
    assert isinstance(clock, ManualClock)
    request_id = name(dispatcher.submit(dispatcher.open(), [1], PARAMS, num_choices=2))
    clock.time_s += 0.5
    send(dispatcher, output(request_id), output(request_id, choice=1))
    clock.time_s += 0.25
    send(dispatcher, output(request_id, tokens=2, is_last=True))
    assert (metrics.ttft.count, metrics.ttft.total) == (1, 0.5)
    assert (metrics.itl.count, metrics.itl.total) == (2, 0.25)
    assert metrics.num_output_tokens == 4
    assert metrics.stages["queue"].total == 0.25
    assert metrics.prompt_tokens["cached"] == 3
    assert metrics.num_transfer_bytes == 64


async def test_outputs_of_unknown_choices_and_requests_are_dropped(
    stack: Stack, dispatcher: Dispatcher
) -> None:
    request_id = name(dispatcher.submit(dispatcher.open(), [1], PARAMS))
    send(dispatcher, output(request_id, choice=7), output("stranger"))
    assert stack.front.metrics.num_late_outputs == 2


async def test_requests_and_outputs_cross_the_real_control_sockets(tmp_path: Path) -> None:
    codec = Codec(b"k" * 16)
    edge = AsyncControlSocket(f"ipc://{tmp_path}/edge", codec)
    rank = AsyncControlSocket(f"ipc://{tmp_path}/decode0.0.1", codec)
    stack = make_stack()
    dispatcher = Dispatcher(edge, stack.registry, metrics=stack.front.metrics, clock=ManualClock())
    members = topology()
    members.replicas[1].ranks[0] = RankInfo(rank=0, generation=1, address=rank.address)
    stack.registry.on_message(topology(generation=0))
    stack.registry.on_message(members)
    edge.open()
    rank.open()
    try:
        async with asyncio.timeout(10):
            inbox = dispatcher.open()
            request_id = name(dispatcher.submit(inbox, [1, 2, 3], PARAMS))
            submit = await rank.recv()
            assert isinstance(submit, Submit)
            assert (submit.prompt_ids, submit.reply_to) == ([1, 2, 3], edge.address)
            rank.send(submit.reply_to, Outputs(rank=0, outputs=[output(request_id)]))
            dispatcher.on_message(await edge.recv())
            assert [index for index, _ in await read(inbox)] == [0]
            inbox.close()
            assert await rank.recv() == Abort(request_id=request_id)
    finally:
        edge.close()
        rank.close()
