"""Maps requests to decode ranks and their outputs back to whoever waits for them.

One object per edge process, used from its event loop's thread. It gives every attempt of a
request an id of its own (a client's ``X-Request-Id`` never names anything inside), so two clients
that choose the same name cannot meet, nor can the outputs of a rank that was given up and those
of the rank where the request went on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from uuid import uuid4

from headrace.core.clock import Clock
from headrace.core.errors import RequestError
from headrace.core.messages import Abort, AnyMessage, Output, Outputs, Topology
from headrace.core.requests import SamplingParams
from headrace.serving.fleet import Fleet, Placement, addresses, loss_of
from headrace.serving.openai.call import Asked, Attempt, Call
from headrace.serving.openai.inbox import Inbox
from headrace.serving.openai.line import Line
from headrace.serving.openai.metrics import ServingMetrics
from headrace.serving.openai.ports import ControlPort


class Dispatcher:
    """Submits requests, routes outputs, aborts, and has calls go on elsewhere.

    A call whose decode rank is lost is placed again, with what its client has; while no decode
    replica is up it waits in line.

    Args:
        port: Control socket that requests leave by; outputs come back to its address.
        fleet: Chooses where requests run.
        metrics: Told of every output and every end.
        clock: Time of arrival of requests and outputs.
        max_requests: Calls open at most.
        max_backlog: Unread outputs of one call at most; beyond it the call is failed.
        deadline_s: See ``Submit.deadline_s``; also the longest wait for a replica to be up [s].
        max_retries: Times that a request is begun again at most, wherever the fault was.
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
        max_retries: int = 2,
    ) -> None:
        self._port = port
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock
        self._max_requests = max_requests
        self._max_backlog = max_backlog
        self._deadline_s = deadline_s
        self._max_retries = max_retries
        self._open: set[Call] = set()
        self._running: dict[str, Call] = {}
        self._line = Line(wait_s=deadline_s, on_expired=self._expire)
        self._ordinal = 0
        self._edge_id = uuid4().hex[:12]
        self._unsent: deque[tuple[str, Abort]] = deque()
        self._is_closed = False

    @property
    def num_calls(self) -> int:
        """Calls open now."""
        return len(self._open)

    def open(self) -> Inbox:
        """Return an empty inbox for ``submit``; its reader must ``close`` it in the end."""
        return Inbox()

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
            RequestError: Status 503: too many calls are open, no decode replica is up, or the
                server is stopping.
        """
        self._check_room()
        placement = self._fleet.place(num_sequences=num_choices)
        asked = Asked(
            prompt_ids=list(prompt_ids),
            params=params,
            num_choices=num_choices,
            ordinal=self._ordinal,
            trace=trace,
        )
        self._ordinal += 1
        call = Call(asked, inbox=inbox, started_s=self._clock.now_s(), close=self._close)
        self._open.add(call)
        if not self._start(call, placement):
            raise _overloaded(f"decode rank {placement.replica}.{placement.rank} takes no more")
        return call

    def on_message(self, message: AnyMessage) -> None:
        """Take in any control message; ``Outputs`` and ``Topology`` are for us.

        Whatever comes is also the occasion to repeat what a full queue refused.
        """
        self._flush()
        if isinstance(message, Outputs):
            self._on_outputs(message)
        elif isinstance(message, Topology):
            self._on_topology(message)
        self._place_line()

    def fail_all(self, reason: str) -> None:
        """End every open call with an error and accept no more: the server is stopping."""
        self._is_closed = True
        for call in list(self._open):
            self._fail(call, reason)

    def _check_room(self) -> None:
        if self._is_closed:
            raise _overloaded("the server is stopping")
        if len(self._open) >= self._max_requests:
            raise _overloaded(
                f"{len(self._open)} requests are in flight, the limit is {self._max_requests}"
            )

    # -- attempts -----------------------------------------------------------------------------

    def _start(self, call: Call, placement: Placement) -> bool:
        """Send a call to a decode rank; False when that takes no more."""
        request_id = f"{self._edge_id}-{call.asked.ordinal}"
        if call.num_retries:
            request_id += f".{call.num_retries}"
        attempt = call.attempt = Attempt(request_id=request_id, placement=placement)
        self._running[request_id] = call
        message = call.message(
            attempt,
            reply_to=self._port.address,
            deadline_s=self._deadline_s,
            max_retries=self._max_retries,
        )
        if self._port.send(placement.address, message):
            return True
        self._leave(call)
        return False

    def _leave(self, call: Call) -> None:
        """Take a call off its rank's account; what still comes from there is late."""
        attempt, call.attempt = call.attempt, None
        if attempt is None:
            return
        del self._running[attempt.request_id]
        if not attempt.has_output:
            self._fleet.note_first_output(attempt.placement)
        self._fleet.release(attempt.placement)

    def _abandon(self, call: Call) -> None:
        """Leave a rank that works on the call still."""
        if call.attempt is not None:
            address = call.attempt.placement.address
            self._unsent.append((address, Abort(request_id=call.attempt.request_id)))
            self._flush()
        self._leave(call)

    def _fail(self, call: Call, reason: str) -> None:
        self._line.remove(call)
        self._abandon(call)
        call.fail(reason)

    def _close(self, call: Call) -> None:
        self._open.discard(call)
        self._line.remove(call)
        self._abandon(call)
        if call.unfinished:
            self._metrics.note_aborted(num_sequences=len(call.unfinished))

    # -- losses -------------------------------------------------------------------------------

    def _on_topology(self, topology: Topology) -> None:
        known = addresses(topology)
        # Nobody reads what is sent to a generation that is gone, and it would hold up the rest.
        self._unsent = deque(each for each in self._unsent if each[0] in known)
        for call in list(self._running.values()):
            if call.attempt is not None and (lost := loss_of(call.attempt.placement, topology)):
                self._lose(call, lost)

    def _lose(self, call: Call, lost: str) -> None:
        self._leave(call)
        call.lose(lost)
        if call.num_retries > self._max_retries:
            call.fail(
                f"{lost}; the request was begun {call.num_retries} times, which is the limit: "
                f"send it again"
            )
            return
        self._metrics.num_retries += 1
        self._line.add(call)

    def _place_line(self) -> None:
        while (call := self._line.first) is not None:
            try:
                placement = self._fleet.place(num_sequences=len(call.unfinished))
            except RequestError:
                # Nothing is up yet: the next message may say otherwise.
                return
            if not self._start(call, placement):
                return
            self._line.remove(call)

    def _expire(self, call: Call) -> None:
        call.fail(
            f"{call.lost}, and no decode replica took the request within "
            f"{self._line.wait_s:g} s: send it again"
        )

    # -- outputs ------------------------------------------------------------------------------

    def _on_outputs(self, message: Outputs) -> None:
        now_s = self._clock.now_s()
        for output in message.outputs:
            call = self._running.get(output.request_id)
            if call is None or output.choice not in call.unfinished:
                self._metrics.num_late_outputs += 1
                continue
            self._measure(call, output, now_s)
            call.push(output)
            if not call.unfinished:
                self._leave(call)
            elif call.inbox.num_waiting > self._max_backlog:
                self._fail(call, f"more than {self._max_backlog} outputs wait for a slow reader")

    def _measure(self, call: Call, output: Output, now_s: float) -> None:
        attempt = call.attempt
        if attempt is not None and not attempt.has_output:
            attempt.has_output = True
            self._fleet.note_first_output(attempt.placement)
        if not call.has_output:
            call.has_output = True
            self._metrics.ttft.observe(now_s - call.started_s)
        last_s, num_tokens = call.last_s[output.choice], len(output.token_ids)
        if last_s is not None and num_tokens:
            self._metrics.itl.observe((now_s - last_s) / num_tokens, times=num_tokens)
        call.last_s[output.choice] = now_s
        self._metrics.num_output_tokens += num_tokens
        if output.ledger is not None and output.finish_reason is not None:
            self._metrics.note_ledger(output.ledger)

    def _flush(self) -> None:
        while self._unsent and self._port.send(*self._unsent[0]):
            self._unsent.popleft()


def _overloaded(reason: str) -> RequestError:
    return RequestError(f"{reason}; try again", status=503, code="overloaded")
