"""How long a prompt may be, and how long its output."""

from __future__ import annotations

from headrace.core.errors import RequestError
from headrace.serving.fleet import Limits
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.config import ServedModel, ServingConfig
from headrace.serving.openai.ports import Tokenizer
from headrace.serving.openai.sampling import asked_max_tokens


def longest_prompt(model: ServedModel, limits: Limits, config: ServingConfig) -> int:
    """Return the most tokens that a prompt may have; 0 when nothing limits it."""
    context = _context(model, limits)
    return _least(config.max_prompt_tokens, limits.max_prompt_tokens, context and context - 1)


def check_text(text: str, tokenizer: Tokenizer, *, longest: int, param: str) -> None:
    """Refuse a prompt that cannot fit before the work of tokenizing it.

    Args:
        text: The whole prompt.
        tokenizer: Knows how few tokens it may have.
        longest: From ``longest_prompt``.
        param: Field that is blamed.

    Raises:
        RequestError: Code ``context_length_exceeded``.
    """
    # No character has less than one byte: short texts need not be encoded to be let through.
    if not longest or tokenizer.fewest_tokens(4 * len(text)) <= longest:
        return
    num_bytes = len(text.encode(errors="replace"))
    fewest = tokenizer.fewest_tokens(num_bytes)
    if fewest > longest:
        raise RequestError(
            f"the prompt has {num_bytes} bytes, which are at least {fewest} tokens: the longest "
            f"that this deployment takes is {longest} tokens; shorten it",
            param=param,
            code="context_length_exceeded",
        )


def resolve_max_tokens(
    body: ChatBody | CompletionBody,
    prompt_tokens: int,
    *,
    model: ServedModel,
    limits: Limits,
    config: ServingConfig,
) -> int:
    """Return the output limit of one prompt, which always fits the context.

    Chat without a limit may fill the context; completions without one get OpenAI's 16.

    Raises:
        RequestError: Code ``context_length_exceeded``: the prompt, or prompt plus output, is too
            long; or the prompt is empty.
    """
    param = "messages" if isinstance(body, ChatBody) else "prompt"
    if prompt_tokens < 1:
        raise RequestError(f"{param}: expected at least one token, came none", param=param)
    context, longest = _context(model, limits), longest_prompt(model, limits, config)
    if longest and prompt_tokens > longest:
        raise RequestError(
            f"the prompt has {prompt_tokens} tokens: the longest that this deployment takes is "
            f"{longest} (context {context or 'unknown'}, one token left for output); shorten it",
            param=param,
            code="context_length_exceeded",
        )
    name, asked = asked_max_tokens(body)
    room = context - prompt_tokens if context else 16
    if asked is None:
        return room if isinstance(body, ChatBody) else min(room, 16)
    if context and asked > room:
        raise RequestError(
            f"{prompt_tokens} prompt tokens and {name}={asked} make {prompt_tokens + asked} "
            f"tokens: the context has {context}; ask for at most {room}",
            param=name,
            code="context_length_exceeded",
        )
    return asked


def _context(model: ServedModel, limits: Limits) -> int:
    return _least(model.max_model_tokens, limits.max_request_tokens)


def _least(*limits: int) -> int:
    """Return the smallest limit that is set (above 0), or 0."""
    return min((limit for limit in limits if limit > 0), default=0)
