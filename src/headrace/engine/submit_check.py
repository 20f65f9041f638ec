"""Refuses what an edge should never have sent: behind this, a request's numbers are believed."""

from __future__ import annotations

import math
from collections.abc import Collection

from headrace.core.errors import RequestError
from headrace.core.messages import Submit
from headrace.core.requests import MAX_LOGPROBS, SamplingParams
from headrace.engine.ids import outside

_MAX_SEED = 2**64
_LEAST = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 0.0,
    "min_p": 0.0,
    "repetition_penalty": 0.0,
    "top_logprobs": 0,
}
_FINITE = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")


def check_submit(submit: Submit, *, vocab_size: int) -> None:
    """Refuse a request whose numbers could not be computed with.

    The edge refuses the same with better words; this is for what comes from elsewhere.

    Raises:
        RequestError: Names the field and what came.
    """
    params = submit.params
    if not submit.prompt_ids:
        raise RequestError("a prompt of 0 tokens: expected at least one", param="prompt")
    _check_ids("prompt", submit.prompt_ids, vocab_size)
    for each in submit.resumed:
        _check_ids("resumed", each.output_ids, vocab_size)
    choices = [each.choice for each in submit.resumed]
    if len(set(choices)) < len(choices) or not all(0 <= one < 2**31 for one in choices):
        raise RequestError(f"resumed choices {choices}: expected each once", param="resumed")
    for name, value in (("n", submit.num_choices), ("max_tokens", params.max_tokens)):
        if not 1 <= value < 2**31:
            raise RequestError(f"{name}={value}: expected 1 to {2**31 - 1}", param=name)
    if not 0.0 < submit.deadline_s < math.inf:
        raise RequestError(f"deadline_s={submit.deadline_s}: expected seconds above 0")
    _check_params(params, vocab_size)


def _check_params(params: SamplingParams, vocab_size: int) -> None:
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_ids("logit_bias", params.logit_bias, vocab_size)
    numbers = [getattr(params, name) for name in (*_FINITE, "repetition_penalty")]
    if not all(map(math.isfinite, (*numbers, *params.logit_bias.values()))):
        raise RequestError("sampling parameters: expected finite numbers")
    for name, least in _LEAST.items():
        if getattr(params, name) < least:
            raise RequestError(f"{name}={getattr(params, name)}: expected {least} or more")
    if params.repetition_penalty == 0 or params.top_k >= 2**31:
        raise RequestError(
            f"repetition_penalty={params.repetition_penalty}, top_k={params.top_k}: expected one "
            f"above 0 and one below {2**31}"
        )
    if params.top_logprobs > MAX_LOGPROBS or not 0 <= params.seed < _MAX_SEED:
        raise RequestError(
            f"top_logprobs={params.top_logprobs}, seed={params.seed}: expected at most "
            f"{MAX_LOGPROBS} and 64 bits"
        )


def _check_ids(name: str, ids: Collection[int], vocab_size: int) -> None:
    strange = outside(ids, vocab_size)
    if strange is not None:
        raise RequestError(
            f"{name}: token {strange}: expected ids from 0 to {vocab_size - 1}", param=name
        )
