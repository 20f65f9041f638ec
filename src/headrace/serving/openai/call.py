"""One request through all its attempts: what was asked, what its client has, where it runs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from headrace.core.messages import Output, Resumed, Submit
from headrace.core.requests import FinishReason, Ledger, SamplingParams
from headrace.serving.fleet import Placement
from headrace.serving.openai.inbox import Inbox


class Asked(Struct, frozen=True, kw_only=True):
    """What is the same in every attempt; see ``core.messages.Submit``."""

    prompt_ids: list[int]
    params: SamplingParams
    num_choices: int
    ordinal: int
    trace: bool


class Attempt(Struct, kw_only=True):
    """One run at one decode rank. Outputs are known by its own id, so none is taken for another's.

    Attributes:
        request_id: Name inside the deployment.
        placement: Where it runs.
        has_output: Some choice has had an output in it.
    """

    request_id: str
    placement: Placement
    has_output: bool = False


class Call:
    """The dispatcher's record of one request.

    Args:
        asked: What the client wants.
        inbox: Where outputs go.
        started_s: When it was submitted, by the dispatcher's clock [s].
        close: Called when nobody reads the inbox any more.

    Attributes:
        attempt: Where it runs now; None while it waits for a place, and when it is over.
        lost: What ended its last attempt, in words.
        num_retries: Times it was begun again, here or by a decode rank.
        last_s: Per choice, when its last output came.
        has_output: Some choice has had an output, in whichever attempt.
        unfinished: Choices that have not ended.
    """

    def __init__(
        self, asked: Asked, *, inbox: Inbox, started_s: float, close: Callable[[Call], None]
    ) -> None:
        self.asked = asked
        self.inbox = inbox
        self.started_s = started_s
        self.attempt: Attempt | None = None
        self.lost = ""
        self.num_retries = 0
        self.last_s: list[float | None] = [None] * asked.num_choices
        self.has_output = False
        self.unfinished = set(range(asked.num_choices))
        self._output_ids: list[list[int]] = [[] for _ in range(asked.num_choices)]
        self._ledgers = [Ledger() for _ in range(asked.num_choices)]
        self._first_index = inbox.join(asked.num_choices, lambda: close(self))

    def push(self, output: Output) -> None:
        """Hand one output to the reader, and remember what the client has."""
        self._output_ids[output.choice].extend(output.token_ids)
        if output.ledger is not None:
            self._ledgers[output.choice] = output.ledger
            self.num_retries = max(self.num_retries, output.ledger.num_retries)
        if output.finish_reason is not None:
            self.unfinished.discard(output.choice)
        self.inbox.push(self._first_index + output.choice, output)

    def fail(self, reason: str) -> None:
        """End every unfinished choice with an error that is not the request's fault."""
        self.inbox.is_unavailable = True
        for choice in sorted(self.unfinished):
            self.push(
                Output(
                    request_id="",
                    choice=choice,
                    token_ids=[],
                    finish_reason=FinishReason.ERROR,
                    error=reason,
                )
            )

    def lose(self, reason: str) -> None:
        """Its attempt is gone, and whatever was under way there: the next is one more retry."""
        self.attempt = None
        self.lost = reason
        self.num_retries += 1

    def message(
        self, attempt: Attempt, *, reply_to: str, deadline_s: float, max_retries: int
    ) -> Submit:
        """Return what tells the attempt's decode rank where to go on.

        The ordinal stays the same: scripted back ends play by it.
        """
        asked = self.asked
        return Submit(
            request_id=attempt.request_id,
            reply_to=reply_to,
            prompt_ids=asked.prompt_ids,
            params=asked.params,
            num_choices=asked.num_choices,
            prefill_replica=attempt.placement.prefill_replica,
            ordinal=asked.ordinal,
            deadline_s=deadline_s,
            trace=asked.trace,
            resumed=self._resumed() if self.num_retries else [],
            num_retries=self.num_retries,
            max_retries=max_retries,
        )

    def _resumed(self) -> list[Resumed]:
        return [
            Resumed(
                choice=choice,
                output_ids=list(self._output_ids[choice]),
                ledger=self._ledgers[choice],
            )
            for choice in sorted(self.unfinished)
        ]
