"""How one HTTP request wants to be answered."""

from __future__ import annotations

from msgspec import Struct


class AnswerOptions(Struct, frozen=True, kw_only=True):
    """What of a request concerns the answer's form.

    Attributes:
        is_chat: Chat completion, otherwise text completion.
        answer_id: ``id`` of the answer.
        created_s: Unix time of the request [s].
        model: Name that the answer carries.
        prompt_tokens: Tokens of all prompts.
        choices_per_prompt: Choices of each prompt.
        is_stream: Server-sent events, otherwise one JSON object.
        include_usage: A stream ends with a usage event.
        has_logprobs: Choices carry log-probabilities.
        return_ledger: Choices carry their ledger (extension).
        return_token_ids: Choices carry their output token ids (extension).
        echo: Per choice, the prompt's text to put before the output; empty for no echo.
    """

    is_chat: bool
    answer_id: str
    created_s: int
    model: str
    prompt_tokens: int
    choices_per_prompt: int = 1
    is_stream: bool = False
    include_usage: bool = False
    has_logprobs: bool = False
    return_ledger: bool = False
    return_token_ids: bool = False
    echo: list[str] = []
