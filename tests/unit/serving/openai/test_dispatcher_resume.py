"""A call whose decode rank is lost goes on elsewhere, and its client does not notice."""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import pytest

from headrace.core.errors import RequestError
from headrace.core.messages import Output, Outputs, RankInfo, Submit, Topology
from headrace.core.requests import FinishReason, Ledger, SamplingParams
from headrace.serving.openai.inbox import Inbox
from tests.support.serving_fakes import (
    MODEL,
    ManualClock,
    Stack,
    beat,
    events,
    make_stack,
    re_forming,
    say,
    topology,
)

PARAMS = SamplingParams(max_tokens=4)
TEXT = "Hello, world"


def two_decoders(*, generation: int = 1) -> Topology:
    """Return a topology in which ``decode1`` is there too, with its first generation."""
    members = topology(generation=generation)
    ranks = [RankInfo(rank=i, generation=1, address=f"ipc://decode1.{i}.1") for i in range(2)]
    other = msgspec.structs.replace(members.replicas[1], name="decode1", ranks=ranks)
    return Topology(replicas=[*members.replicas, other])


class Dying:
    """Plays ``TEXT``; the first attempts stop after so many outputs, as if their rank had died."""

    def __init__(self, *num_outputs: int, **last: Any) -> None:
        self._num_outputs = list(num_outputs)
        self._last = last
        self.submits: list[Submit] = []
        self.is_dead = asyncio.Event()

    def __call__(self, submit: Submit) -> Iterator[Output]:
        self.submits.append(submit)
        played = say(submit, TEXT, **self._last)
        if self._num_outputs:
            yield from islice(played, self._num_outputs.pop(0))
            self.is_dead.set()
            return
        yield from played


async def outlive(stack: Stack, script: Dying, asking: asyncio.Task[Any], generations: int) -> Any:
    """Restart the decode replica whenever its rank has died; return the answer."""
    for generation in range(2, 2 + generations):
        async with asyncio.timeout(10):
            await script.is_dead.wait()
        # What the dead rank sent last is on its way still: let it arrive.
        await asyncio.gather(*stack.engine.tasks)
        script.is_dead.clear()
        stack.announce(re_forming(topology(generation=generation - 1), "decode0", without=[0]))
        stack.announce(topology(generation=generation))
    return await asyncio.wait_for(asking, 10)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "n": 2, "return_token_ids": True},
    {"n": 2, "logprobs": 2},
    {"n": 2, "echo": True},
    {"stream": True, "logprobs": 2},
    {"stream": True, "echo": True},
    {"max_tokens": 5},
    {"stream": True, "max_tokens": 5, "n": 3},
]


def told(answer: Any) -> str:
    """Return what a client reads, but for the id and time of the answer."""
    assert answer.status_code == 200, answer.text
    text = answer.text
    head = msgspec.json.decode(events(text)[0] if text.startswith("data:") else text)
    return text.replace(head["id"], "ID").replace(str(head["created"]), "TIME")


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
async def test_a_client_reads_the_same_wherever_its_rank_died(fields: dict[str, Any]) -> None:
    fields = {"max_tokens": 40} | fields
    undisturbed = told(await make_stack(Dying()).complete("hi", **fields))
    for split in range(len(TEXT) * fields.get("n", 1)):
        script = Dying(split)
        stack = make_stack(script)
        asking = asyncio.create_task(stack.complete("hi", **fields))
        is_over = min(len(TEXT), fields["max_tokens"]) * fields.get("n", 1) <= split
        answer = await outlive(stack, script, asking, generations=0 if is_over else 1)
        assert told(answer) == undisturbed, split
        assert stack.front.metrics.num_retries == (not is_over)


async def test_usage_and_metrics_count_each_token_once() -> None:
    script = Dying(7, cached_tokens=1, recomputed_tokens=8, num_retries=1)
    stack = make_stack(script)
    asking = asyncio.create_task(stack.chat(max_tokens=40, return_ledger=True))
    body = (await outlive(stack, script, asking, generations=1)).json()
    assert body["usage"]["completion_tokens"] == len(TEXT)
    assert body["choices"][0]["ledger"]["num_retries"] == 1
    metrics = stack.front.metrics
    assert metrics.num_output_tokens == len(TEXT)
    assert metrics.ttft.count == 1
    assert metrics.finished == {"stop": 1}
    assert metrics.prompt_tokens["recomputed"] == 8
    assert metrics.num_aborts == 0
    assert stack.engine.aborts == []


async def test_the_next_attempt_has_a_name_of_its_own_and_late_outputs_are_dropped() -> None:
    script = Dying(2)
    stack = make_stack(script)
    asking = asyncio.create_task(stack.chat(max_tokens=40))
    answer = await outlive(stack, script, asking, generations=1)
    first, second = script.submits
    assert first.request_id != second.request_id
    assert first.ordinal == second.ordinal
    late = Output(request_id=first.request_id, choice=0, token_ids=[88], text="X")
    stack.front.dispatcher.on_message(Outputs(rank=0, outputs=[late]))
    assert stack.front.metrics.num_late_outputs == 1
    assert answer.json()["choices"][0]["message"]["content"] == TEXT


async def test_retries_are_bounded_and_the_error_says_what_died_and_how_often() -> None:
    script = Dying(2, 1, 0)
    stack = make_stack(script)
    asking = asyncio.create_task(stack.chat(max_tokens=40))
    answer = await outlive(stack, script, asking, generations=3)
    assert answer.status_code == 503
    message = answer.json()["error"]["message"]
    assert message == (
        "decode rank decode0.0 died; the request was begun 3 times, which is the limit: "
        "send it again"
    )
    assert [len(each.resumed[0].output_ids) for each in script.submits[1:]] == [2, 3]
    assert [each.num_retries for each in script.submits] == [0, 1, 2]


# -- the dispatcher alone ---------------------------------------------------------------------


def nothing(_: object) -> Any:
    return iter(())


@pytest.fixture
def stack() -> Stack:
    return make_stack(nothing, clock=ManualClock())


def submit(stack: Stack, **fields: Any) -> Inbox:
    inbox = stack.front.dispatcher.open()
    stack.front.dispatcher.submit(inbox, [1], PARAMS, **fields)
    return inbox


def output(stack: Stack, *, choice: int = 0, is_last: bool = False, retries: int = 0) -> Output:
    """Return an output of the request that was sent last."""
    return Output(
        request_id=stack.engine.submits[-1].request_id,
        choice=choice,
        token_ids=[65],
        finish_reason=FinishReason.STOP if is_last else None,
        ledger=Ledger(num_retries=retries) if retries else None,
    )


def lose(stack: Stack, *, generation: int = 1) -> None:
    stack.announce(re_forming(topology(generation=generation), "decode0", without=[1]))


async def test_another_replica_that_is_up_takes_the_call_at_once() -> None:
    stack = make_stack(nothing)
    stack.announce(two_decoders())
    submit(stack)
    stack.announce(re_forming(two_decoders(), "decode0", without=[0]))
    assert stack.engine.addresses == ["ipc://decode0.0.1", "ipc://decode1.0.1"]


async def test_calls_on_other_replicas_are_left_alone() -> None:
    stack = make_stack(nothing)
    stack.announce(two_decoders())
    for _ in range(3):
        submit(stack)
    assert stack.engine.addresses[-1] == "ipc://decode1.0.1"
    stack.announce(re_forming(two_decoders(), "decode1", without=[0]))
    assert len(stack.engine.submits) == 4
    assert stack.engine.submits[3].ordinal == 2


async def test_a_dead_prefill_replica_is_the_decode_ranks_business(stack: Stack) -> None:
    submit(stack)
    stack.announce(re_forming(topology(), "prefill0", without=[0, 1]))
    assert len(stack.engine.submits) == 1


async def test_a_sister_ranks_death_takes_the_whole_replicas_work(stack: Stack) -> None:
    submit(stack)
    lose(stack)
    stack.announce(topology(generation=2))
    assert stack.engine.addresses == ["ipc://decode0.0.1", "ipc://decode0.0.2"]


async def test_only_unfinished_choices_go_on(stack: Stack) -> None:
    submit(stack, num_choices=3)
    outputs = [output(stack, choice=1, is_last=True), output(stack, choice=2)]
    stack.front.dispatcher.on_message(Outputs(rank=0, outputs=outputs))
    lose(stack)
    stack.announce(topology(generation=2))
    again = stack.engine.submits[-1]
    assert [(each.choice, each.output_ids) for each in again.resumed] == [(0, []), (2, [65])]
    assert again.num_choices == 3


async def test_a_call_waits_in_line_while_nothing_is_up_and_the_oldest_goes_first(
    stack: Stack,
) -> None:
    for _ in range(2):
        submit(stack)
    lose(stack)
    assert len(stack.engine.submits) == 2
    stack.announce(topology(generation=2))
    assert [each.ordinal for each in stack.engine.submits] == [0, 1, 0, 1]


async def test_new_requests_meanwhile_are_told_which_replica_re_forms() -> None:
    stack = make_stack()
    lose(stack)
    answer = await stack.chat()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "decode0 re-forms without rank 1" in answer.json()["error"]["message"]
    stack.announce(topology(generation=2))
    assert (await stack.chat()).status_code == 200


async def test_a_client_that_leaves_while_waiting_is_forgotten(stack: Stack) -> None:
    inbox = submit(stack)
    lose(stack)
    inbox.close()
    assert stack.front.dispatcher.num_calls == 0
    stack.announce(topology(generation=2))
    assert len(stack.engine.submits) == 1
    assert stack.engine.aborts == [], "the rank that had it is gone"
    assert stack.front.metrics.num_aborts == 1


async def test_a_wait_that_is_too_long_ends_with_what_was_lost() -> None:
    stack = make_stack(nothing, deadline_s=0.02)
    inbox = submit(stack)
    lose(stack)
    ((_, end),) = await asyncio.wait_for(anext(inbox), 10)
    assert end.error == (
        "decode replica decode0 re-forms without rank 1, and no decode replica took the request "
        "within 0.02 s: send it again"
    )
    stack.announce(topology(generation=2))
    assert len(stack.engine.submits) == 1


async def test_a_rank_that_takes_no_more_is_asked_again_with_the_next_message(
    stack: Stack,
) -> None:
    submit(stack)
    lose(stack)
    stack.engine.is_full = True
    stack.announce(topology(generation=2))
    assert len(stack.engine.submits) == 1
    stack.engine.is_full = False
    stack.front.dispatcher.on_message(beat("decode0", 0, generation=2))
    assert len(stack.engine.submits) == 2
    assert sum(load.num_running for load in stack.registry.rank_loads()) == 0


async def test_retries_that_a_decode_rank_made_are_part_of_the_bound(stack: Stack) -> None:
    inbox = submit(stack)
    stack.front.dispatcher.on_message(Outputs(rank=0, outputs=[output(stack, retries=2)]))
    lose(stack)
    ends = [each.error for _, each in await anext(inbox)]
    assert "the request was begun 3 times" in ends[-1]


async def test_stopping_ends_calls_that_wait_too(stack: Stack) -> None:
    inbox = submit(stack)
    lose(stack)
    stack.front.dispatcher.fail_all("the server is stopping")
    ((_, end),) = await anext(inbox)
    assert end.error == "the server is stopping"
    stack.announce(topology(generation=2))
    assert len(stack.engine.submits) == 1


async def test_aborts_for_ranks_that_are_gone_do_not_hold_up_others(stack: Stack) -> None:
    inbox = submit(stack)
    stack.engine.is_full = True
    inbox.close()
    stack.announce(topology(generation=2))
    stack.engine.is_full = False
    stack.front.dispatcher.on_message(beat("decode0", 0, generation=2))
    assert stack.engine.aborts == []


async def test_what_was_lost_is_load_no_longer_and_what_goes_on_is() -> None:
    stack = make_stack(nothing)
    stack.announce(two_decoders())
    for _ in range(2):
        submit(stack)
    stack.announce(re_forming(two_decoders(), "decode0", without=[0]))
    # Both went to decode1, one to each rank; a third finds them equally busy.
    assert stack.engine.addresses[2:] == ["ipc://decode1.0.1", "ipc://decode1.1.1"]
    members = two_decoders(generation=2)
    stack.announce(members)
    submit(stack)
    assert stack.engine.addresses[-1] == "ipc://decode0.0.2"


async def test_a_finished_call_is_load_no_longer_though_its_reader_is_slow(stack: Stack) -> None:
    submit(stack)
    stack.front.dispatcher.on_message(Outputs(rank=0, outputs=[output(stack, is_last=True)]))
    submit(stack)
    assert stack.engine.addresses == ["ipc://decode0.0.1"] * 2
    assert stack.front.dispatcher.num_calls == 2


async def test_without_retries_a_loss_is_an_error_at_once() -> None:
    stack = make_stack(nothing, max_retries=0)
    inbox = submit(stack)
    lose(stack)
    ((_, end),) = await anext(inbox)
    assert "begun 1 times" in end.error
    with pytest.raises(RequestError, match="re-forms"):
        submit(stack)


async def test_a_disconnect_while_waiting_ends_the_answer() -> None:
    script = Dying(3)
    stack = make_stack(script)
    body = {"model": MODEL, "prompt": "hi", "stream": True, "max_tokens": 40}
    asking = asyncio.create_task(stack.client.post("/v1/completions", json=body))
    async with asyncio.timeout(10):
        await script.is_dead.wait()
    await asyncio.gather(*stack.engine.tasks)
    lose(stack)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert stack.front.dispatcher.num_calls == 0
    stack.announce(topology(generation=2))
    assert len(script.submits) == 1
