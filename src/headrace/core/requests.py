"""A request as the engine sees it, and the ledger that is kept of it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

MAX_LOGPROBS = 20


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How the next token is chosen and when the sequence ends. Validated by the HTTP edge.

    Noise is keyed by (seed, position): a sequence's tokens do not depend on its neighbours in
    the batch, on preemption, or on the replica that happens to run it.

    Attributes:
        max_tokens: Output tokens at most [tokens].
        temperature: Logit divisor; 0 is greedy (ties go to the lowest token id).
        top_k: Keep this many tokens; 0 keeps all.
        top_p: Keep the smallest set whose probability reaches this.
        min_p: Drop tokens under this fraction of the most likely one's probability.
        presence_penalty: Taken off the logit of every token already in the output.
        frequency_penalty: Taken off once per occurrence in the output.
        repetition_penalty: Divides positive, multiplies negative logits of seen tokens (prompt
            and output).
        logit_bias: Added to the logits of these token ids.
        seed: Key of the noise; the edge draws one where the client gave none.
        stop: Stop strings; never shown, whole or in part, unless ``include_stop``.
        include_stop: Show the stop string that ended the text.
        stop_token_ids: Tokens that end the sequence besides EOS.
        ignore_eos: Do not end at EOS.
        logprobs: Log-probabilities of the chosen token are wanted.
        top_logprobs: Alternatives per position, at most ``MAX_LOGPROBS``.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where they exist."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Ledger(Struct, kw_only=True):
    """The one record of a sequence from which usage, metrics and traces derive.

    Times are seconds of work or waiting, tokens are prompt tokens by where their KV came from.
    ``queue_s`` is spent in the lines of decoder and prefiller, ``prefill_s`` in steps that computed
    the prompt, and ``transfer_s`` is what is left until all KV was there: the part of the transfer
    that compute did not hide.
    Prompt tokens = ``cached_tokens + transferred_tokens + computed_tokens`` of the first pass;
    what a preemption or a dead replica made necessary again is in ``recomputed_tokens``.
    ``num_retries`` says how often a fault had the sequence begin again; decode time that a rank
    took along when it died is not known.
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    decode_s: float = 0.0
    cached_tokens: int = 0
    prefiller_cached_tokens: int = 0
    transferred_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    bytes_expected: int = 0
    bytes_received: int = 0
    num_sessions: int = 0
    num_preemptions: int = 0
    num_retries: int = 0
    prefill_replica: str = ""
    decode_replica: str = ""
    decode_rank: int = 0
