"""From a request's fields to ``SamplingParams``: defaults filled in, ranges and ids checked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.core.errors import RequestError
from headrace.core.requests import MAX_LOGPROBS, SamplingParams
from headrace.serving.openai.bodies import ChatBody, CompletionBody, Sampling
from headrace.serving.openai.config import ServedModel

# Below this a temperature is greedy: dividing by less only risks overflow.
MIN_TEMPERATURE = 1e-5
MAX_STOP_STRINGS = 16
_MAX_INT64 = (1 << 63) - 1


def sampling_params(
    body: Sampling, model: ServedModel, *, max_tokens: int, fallback_seed: int
) -> SamplingParams:
    """Return how to sample, every value checked.

    Args:
        body: The request.
        model: Its defaults and vocabulary.
        max_tokens: Output limit, already resolved against the context.
        fallback_seed: Key of the noise when the client gave none.

    Raises:
        RequestError: Status 400, naming the field.
    """
    defaults = model.defaults
    temperature = _number(body, "temperature", low=0.0, default=defaults.temperature)
    logprobs, top_logprobs = _logprobs(body)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature if temperature >= MIN_TEMPERATURE else 0.0,
        top_k=_top_k(body.top_k, default=defaults.top_k, vocab_size=model.vocab_size),
        top_p=_number(body, "top_p", low=0.0, high=1.0, default=defaults.top_p, is_open=True),
        min_p=_number(body, "min_p", low=0.0, high=1.0, default=defaults.min_p),
        presence_penalty=_number(body, "presence_penalty", low=-2.0, high=2.0, default=0.0),
        frequency_penalty=_number(body, "frequency_penalty", low=-2.0, high=2.0, default=0.0),
        repetition_penalty=_number(
            body, "repetition_penalty", low=0.0, default=defaults.repetition_penalty, is_open=True
        ),
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size=model.vocab_size),
        seed=_seed(body.seed, fallback=fallback_seed),
        stop=_stop(body.stop),
        include_stop=bool(body.include_stop_str_in_output),
        stop_token_ids=_ids(body.stop_token_ids or (), vocab_size=model.vocab_size),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
    )


def num_choices(body: Sampling, *, limit: int) -> int:
    """Return ``n``, between 1 and ``limit``."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= limit:
        raise _range("n", n, f"1 to {limit}")
    return n


def asked_max_tokens(body: Sampling) -> tuple[str, int | None]:
    """Return the output limit that the client asked for, and the field that it used.

    Raises:
        RequestError: Less than 1, or two fields that disagree.
    """
    old, new = body.max_tokens, getattr(body, "max_completion_tokens", None)
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens={old} and max_completion_tokens={new} disagree: send one of them",
            param="max_tokens",
        )
    name = "max_tokens" if new is None else "max_completion_tokens"
    value = old if new is None else new
    if value is not None and value < 1:
        raise _range(name, value, "at least 1")
    return name, value


def _range(name: str, value: object, expected: str) -> RequestError:
    return RequestError(f"{name}={value}: expected {expected}", param=name, code="invalid_value")


def _number(
    body: Sampling,
    name: str,
    *,
    low: float,
    default: float,
    high: float = math.inf,
    is_open: bool = False,
) -> float:
    """Return a field's value inside [low, high], or (low, high] when ``is_open``."""
    given: float | None = getattr(body, name)
    value = default if given is None else float(given)
    if not math.isfinite(value) or value > high or value < low or (is_open and value == low):
        edge = f"more than {low:g}" if is_open else f"at least {low:g}"
        raise _range(name, value, edge + (f" and at most {high:g}" if high < math.inf else ""))
    return value


def _top_k(given: int | None, *, default: int, vocab_size: int) -> int:
    value = default if given is None else given
    if value < -1:
        raise _range("top_k", value, "a positive number, or 0 or -1 for all tokens")
    return 0 if value == -1 else min(value, vocab_size)


def _seed(given: int | None, *, fallback: int) -> int:
    if given is None:
        return fallback
    if not -_MAX_INT64 - 1 <= given <= _MAX_INT64:
        raise _range("seed", given, "a 64-bit integer")
    return given & _MAX_INT64


def _stop(given: str | list[str] | None) -> tuple[str, ...]:
    stop = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stop) > MAX_STOP_STRINGS:
        raise RequestError(
            f"stop has {len(stop)} strings: expected at most {MAX_STOP_STRINGS}", param="stop"
        )
    if "" in stop:
        raise RequestError("stop: an empty string would stop at once", param="stop")
    return stop


def _ids(ids: Sequence[int], *, vocab_size: int) -> tuple[int, ...]:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"stop_token_ids: {token_id} is not a token id (0 to {vocab_size - 1})",
                param="stop_token_ids",
                code="invalid_value",
            )
    return tuple(ids)


def _logit_bias(given: dict[str, float], *, vocab_size: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in given.items():
        # isdecimal takes other scripts' digits too; int() reads them all, so ASCII is asked for.
        if not (key.isascii() and key.isdecimal() and len(key) < 12 and int(key) < vocab_size):
            raise RequestError(
                f"logit_bias: {key!r} is not a token id (0 to {vocab_size - 1})",
                param="logit_bias",
                code="invalid_value",
            )
        if not -100.0 <= value <= 100.0:
            raise RequestError(
                f"logit_bias: {value} for token {key}: expected -100 to 100",
                param="logit_bias",
                code="invalid_value",
            )
        bias[int(key)] = float(value)
    return bias


def _logprobs(body: Sampling) -> tuple[bool, int]:
    """Return (wanted, alternatives): chat says it by two fields, completions by one number."""
    if isinstance(body, ChatBody):
        top = body.top_logprobs or 0
        if not 0 <= top <= MAX_LOGPROBS:
            raise _range("top_logprobs", top, f"0 to {MAX_LOGPROBS}")
        if top and not body.logprobs:
            raise RequestError(f"top_logprobs={top} needs logprobs=true", param="top_logprobs")
        return bool(body.logprobs), top
    count = body.logprobs if isinstance(body, CompletionBody) else None
    if count is None:
        return False, 0
    if not 0 <= count <= MAX_LOGPROBS:
        raise _range("logprobs", count, f"0 to {MAX_LOGPROBS}")
    return True, count
