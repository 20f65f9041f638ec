"""Turns sampled tokens into outputs, and decides in this one place when a sequence ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from headrace.core.messages import Message, Output, Outputs, Submit, TokenLogprob, Trace
from headrace.core.requests import FinishReason
from headrace.engine.sequence import Sequence

# Choices that are told that their request is refused: more than anybody may ask for.
MAX_REFUSED = 128


class Emitter:
    """Collects the outputs of a step and sends one message per edge.

    Args:
        rank: This rank's index, for the edge's records.
        replica: Its replica's name, likewise.
        eos_token_ids: Tokens that end a sequence unless ``ignore_eos``.
        max_model_tokens: Longest prompt + output [tokens].
        send: Sends a message to a control address.
    """

    def __init__(
        self,
        *,
        rank: int,
        eos_token_ids: Collection[int],
        max_model_tokens: int,
        send: Callable[[str, Message], object],
        replica: str = "",
    ) -> None:
        self._rank = rank
        self._replica = replica
        self._eos = frozenset(eos_token_ids)
        self._max_model_tokens = max_model_tokens
        self._send = send
        self._pending: defaultdict[str, list[Output]] = defaultdict(list)

    def take_token(
        self,
        sequence: Sequence,
        token_id: int,
        *,
        logprob: TokenLogprob | None = None,
        trace: Trace | None = None,
    ) -> FinishReason | None:
        """Append a sampled token; return why the sequence ends with it, if it does."""
        sequence.token_ids.append(token_id)
        sequence.ledger.output_tokens += 1
        if sequence.counts is not None:
            sequence.counts.add([token_id])
        is_end = self._is_end(sequence, token_id)
        delta = sequence.text.push(token_id, is_shown=not is_end)
        text = delta.text
        reason = FinishReason.STOP if is_end or delta.is_stopped else self._limit(sequence)
        if reason is not None and not delta.is_stopped:
            text += sequence.text.finish()
        has_ledger = reason is not None or sequence.owes_ledger
        sequence.owes_ledger = False
        sequence.ledger.decode_replica = self._replica
        sequence.ledger.decode_rank = self._rank
        sequence.ledger.reasoning_tokens = sequence.text.num_reasoning_tokens
        self._pending[sequence.submit.reply_to].append(
            Output(
                request_id=sequence.submit.request_id,
                choice=sequence.choice,
                token_ids=[token_id],
                text=text,
                logprobs=None if logprob is None else [logprob],
                finish_reason=reason,
                ledger=sequence.ledger if has_ledger else None,
                trace=trace,
            )
        )
        return reason

    def fail(self, sequence: Sequence, error: str) -> None:
        """End a sequence with one clear line instead of more tokens."""
        self._pending[sequence.submit.reply_to].append(
            Output(
                request_id=sequence.submit.request_id,
                choice=sequence.choice,
                token_ids=[],
                finish_reason=FinishReason.ERROR,
                ledger=sequence.ledger,
                error=error,
            )
        )

    def refuse(self, submit: Submit, error: str) -> None:
        """End a request before it has sequences."""
        choices = [each.choice for each in submit.resumed] or range(submit.num_choices)
        for choice in choices[:MAX_REFUSED]:
            self._pending[submit.reply_to].append(
                Output(
                    request_id=submit.request_id,
                    choice=choice,
                    token_ids=[],
                    finish_reason=FinishReason.ERROR,
                    error=error,
                )
            )

    def flush(self) -> None:
        """Send what the step added: one message per edge."""
        for reply_to, outputs in self._pending.items():
            self._send(reply_to, Outputs(rank=self._rank, outputs=outputs))
        self._pending.clear()

    def _is_end(self, sequence: Sequence, token_id: int) -> bool:
        """Whether the token ends its sequence by its id; such a token is no text."""
        params = sequence.submit.params
        is_eos = token_id in self._eos and not params.ignore_eos
        return is_eos or token_id in params.stop_token_ids

    def _limit(self, sequence: Sequence) -> FinishReason | None:
        is_full = len(sequence.token_ids) >= self._max_model_tokens
        if is_full or sequence.num_output_tokens >= sequence.submit.params.max_tokens:
            return FinishReason.LENGTH
        return None
