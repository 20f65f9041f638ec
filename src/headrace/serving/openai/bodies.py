"""The request bodies, field by field, as OpenAI's API names them plus this project's extensions.

Only names and types stand here; ranges and meaning are checked where a field is used. A field is
None when the client left it out or sent null, which mean the same.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class StreamOptions(Struct, frozen=True, kw_only=True):
    """How a stream is sent. ``include_obfuscation`` is accepted and has no effect."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(Struct, kw_only=True):
    """Fields that chat and completions share.

    Extensions: ``top_k``, ``min_p``, ``repetition_penalty``, ``ignore_eos``, ``stop_token_ids``,
    ``include_stop_str_in_output``, ``return_ledger`` (each choice carries its ledger) and
    ``return_token_ids`` (each choice carries its output token ids).
    """

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    return_ledger: bool | None = None
    return_token_ids: bool | None = None

    # Accepted, with no effect on the answer: they concern OpenAI's own service.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class ResponseFormat(Struct, kw_only=True):
    """``type`` other than ``text`` is refused until grammars exist."""

    type: str


class ChatBody(Sampling, kw_only=True):
    """``POST /v1/chat/completions``. Extensions: the last two fields, for the template."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None

    # No effect: hints about how to serve, not about what to answer.
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None

    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(Sampling, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
