"""Maps requests to decode ranks and their outputs back to whoever waits for them.

One object per edge process, used from its event loop's thread. It gives every request an id of
its own (a client's ``X-Request-Id`` never names anything inside), so two clients that choose the
same name cannot meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from uuid import uuid4

from headrace.core.clock import Clock
from headrace.core.errors import RequestError
from headrace.core.messages import Abort, AnyMessage, Output, Outputs, Submit, Topology
from headrace.core.requests import SamplingParams
from headrace.serving.fleet import Fleet, live_ranks
from headrace.serving.openai.inbox import Call, Inbox
from headrace.serving.openai.metrics import ServingMetrics
from headrace.serving.openai.ports import ControlPort


class Dispatcher:
    """Submits requests, routes outputs, aborts, and fails calls whose decode rank died.

    Args:
        port: Control socket that requests leave by; outputs come back to its address.
        fleet: Chooses where requests run.
        metrics: Told of every output and every end.
        clock: Time of arrival of requests and outputs.
        max_requests: Calls open at most.
        max_backlog: Unread outputs of one call at most; beyond it the call is failed.
        deadline_s: See ``Submit.deadline_s``.
    """

    def __init__(
        self,
        port: ControlPort,
        fleet: Fleet,
        *,
        metrics: ServingMetrics,
        clock: Clock,
        max_requests: int = 1024,
        max_backlog: int = 16384,
        deadline_s: float = 30.0,
    ) -> None:
        self._port = port
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock
        self._max_requests = max_requests
        self._max_backlog = max_backlog
        self._deadline_s = deadline_s
        self._calls: dict[str, Call] = {}
        self._ordinal = 0
        self._edge_id = uuid4().hex[:12]
        self._unsent: deque[tuple[str, Abort]] = deque()
        self._is_closed = False

    @property
    def num_calls(self) -> int:
        """Calls open now."""
        return len(self._calls)

    def open(self) -> Inbox:
        """Return an empty inbox for ``submit``; its reader must ``close`` it in the end."""
        return Inbox(self._forget)

    def submit(
        self,
        inbox: Inbox,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        num_choices: int = 1,
        trace: bool = False,
    ) -> Call:
        """Place a validated request and send it to its decode rank.

        Its outputs come to ``inbox``, numbered on from those of the calls already there.

        Args:
            inbox: From ``open``.
            prompt_ids: At least one token id.
            params: How to sample.
            num_choices: Sequences that continue the prompt.
            trace: See ``Submit.trace``.

        Raises:
            RequestError: Status 503: too many calls are open, no decode rank is alive, or the
                server is stopping.
        """
        self._check_room()
        placement = self._fleet.place(num_sequences=num_choices)
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        request_id = f"{self._edge_id}-{ordinal}"
        call = Call(request_id, placement, inbox=inbox, started_s=self._clock.now_s())
        inbox.calls.append(call)
        self._calls[request_id] = call
        is_sent = self._port.send(
            placement.address,
            Submit(
                request_id=request_id,
                reply_to=self._port.address,
                prompt_ids=list(prompt_ids),
                params=params,
                num_choices=num_choices,
                prefill_replica=placement.prefill_replica,
                ordinal=ordinal,
                deadline_s=self._deadline_s,
                trace=trace,
            ),
        )
        if not is_sent:
            raise _overloaded(f"decode rank {placement.replica}.{placement.rank} takes no more")
        return call

    def _check_room(self) -> None:
        if self._is_closed:
            raise _overloaded("the server is stopping")
        if len(self._calls) >= self._max_requests:
            raise _overloaded(
                f"{len(self._calls)} requests are in flight, the limit is {self._max_requests}"
            )

    def on_message(self, message: AnyMessage) -> None:
        """Take in any control message; ``Outputs`` and ``Topology`` are for us.

        Whatever comes is also the occasion to repeat aborts that a full queue refused.
        """
        self._flush()
        if isinstance(message, Outputs):
            self._on_outputs(message)
        elif isinstance(message, Topology):
            self._on_topology(message)

    def fail_all(self, reason: str) -> None:
        """End every open call with an error and accept no more: the server is stopping."""
        self._is_closed = True
        for call in list(self._calls.values()):
            call.fail(reason)
            self._abort(call)

    def _forget(self, call: Call) -> None:
        if self._calls.pop(call.request_id, None) is None:
            return
        if not call.has_output:
            self._fleet.note_first_output(call.placement)
        self._fleet.release(call.placement)
        if call.unfinished:
            self._metrics.note_aborted(num_sequences=len(call.unfinished))
            self._abort(call)

    def _on_outputs(self, message: Outputs) -> None:
        now_s = self._clock.now_s()
        for output in message.outputs:
            call = self._calls.get(output.request_id)
            if call is None or output.choice not in call.unfinished:
                self._metrics.num_late_outputs += 1
                continue
            self._measure(call, output, now_s)
            call.push(output)
            if call.inbox.num_waiting > self._max_backlog:
                call.fail(f"more than {self._max_backlog} outputs wait for a slow reader")
                self._abort(call)

    def _measure(self, call: Call, output: Output, now_s: float) -> None:
        if not call.has_output:
            call.has_output = True
            self._fleet.note_first_output(call.placement)
            self._metrics.ttft.observe(now_s - call.started_s)
        last_s, num_tokens = call.last_s[output.choice], len(output.token_ids)
        if last_s is not None and num_tokens:
            self._metrics.itl.observe((now_s - last_s) / num_tokens, times=num_tokens)
        call.last_s[output.choice] = now_s
        self._metrics.num_output_tokens += num_tokens
        if output.ledger is not None and output.finish_reason is not None:
            self._metrics.note_ledger(output.ledger)

    def _on_topology(self, topology: Topology) -> None:
        live = live_ranks(topology)
        for call in list(self._calls.values()):
            at = call.placement
            if (at.replica, at.rank, at.generation) not in live:
                call.fail(f"decode rank {at.replica}.{at.rank} died; send the request again")

    def _abort(self, call: Call) -> None:
        self._unsent.append((call.placement.address, Abort(request_id=call.request_id)))
        self._flush()

    def _flush(self) -> None:
        while self._unsent and self._port.send(*self._unsent[0]):
            self._unsent.popleft()


def _overloaded(reason: str) -> RequestError:
    return RequestError(f"{reason}; try again", status=503, code="overloaded")
