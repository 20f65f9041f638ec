"""From messages or a ``prompt`` to token ids, with long texts tokenized off the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.core.errors import RequestError
from headrace.serving.fleet import Limits
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.config import ServedModel, ServingConfig
from headrace.serving.openai.ports import ChatTemplate, Tokenizer
from headrace.serving.openai.sampling import asked_max_tokens

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Prompt = str | list[int]
T = TypeVar("T")


async def chat_prompt(
    body: ChatBody, template: ChatTemplate, tokenizer: Tokenizer, *, config: ServingConfig
) -> list[int]:
    """Render ``body``'s messages and tokenize them.

    Raises:
        RequestError: A message of the wrong shape, or one that the template refuses.
    """
    messages = [plain_message(message, i) for i, message in enumerate(body.messages)]
    if not messages:
        raise RequestError("messages is empty: send at least one", param="messages")
    tools = None if body.tool_choice == "none" else body.tools

    def run() -> list[int]:
        text = template.render(
            messages,
            tools=tools or None,
            add_generation_prompt=body.add_generation_prompt is not False,
            variables=body.chat_template_kwargs,
        )
        return tokenizer.encode(text)

    size = sum(len(str(message.get("content") or "")) for message in messages)
    return await _maybe_in_thread(run, size=size, limit=config.executor_chars)


async def completion_prompts(
    body: CompletionBody, tokenizer: Tokenizer, *, config: ServingConfig, vocab_size: int
) -> list[list[int]]:
    """Return the ids of every prompt of ``body``, in order.

    Raises:
        RequestError: An empty list, mixed kinds, or an id outside the vocabulary.
    """
    prompts = split_prompts(body.prompt)
    for prompt in prompts:
        if not isinstance(prompt, str):
            _check_ids(prompt, vocab_size)
    size = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))

    def ids(prompt: Prompt) -> list[int]:
        # A chat template writes its own BOS; a plain prompt gets what the tokenizer adds.
        if isinstance(prompt, str):
            return tokenizer.encode(prompt, add_special_tokens=True)
        return prompt

    def run() -> list[list[int]]:
        return [ids(prompt) for prompt in prompts]

    return await _maybe_in_thread(run, size=size, limit=config.executor_chars)


async def _maybe_in_thread(work: Callable[[], T], *, size: int, limit: int) -> T:
    # A hop to a thread costs more than a short text; a long one would hold up every stream.
    if size <= limit:
        return work()
    return await asyncio.to_thread(work)


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[Prompt]:
    """Return one entry per prompt: a text or a list of ids.

    Example:
        >>> split_prompts("a"), split_prompts([1, 2]), split_prompts(["a", [3]])
        (['a'], [[1, 2]], ['a', [3]])
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is empty: send at least one token", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    texts: list[Prompt] = [item for item in prompt if not isinstance(item, int)]
    if ids and texts:
        raise RequestError(
            "prompt mixes token ids with prompts: send one list of ids, or a list of prompts",
            param="prompt",
        )
    return [ids] if ids else texts


def _check_ids(ids: Sequence[int], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"prompt: {token_id} is not a token id (0 to {vocab_size - 1})",
                param="prompt",
                code="invalid_value",
            )


def plain_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return a message as templates expect it: known role, content one string.

    Text parts are joined; ``developer`` becomes ``system``, which open models know; the JSON
    arguments of tool calls become objects, over which templates may iterate. Other fields pass.
    """
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"messages[{index}].role={role!r}: expected one of {', '.join(ROLES)}",
            param=f"messages[{index}].role",
        )
    plain = dict(message)
    plain["role"] = "system" if role == "developer" else role
    plain["content"] = _text(message.get("content"), f"messages[{index}].content")
    if plain["content"] is None and not message.get("tool_calls"):
        if role != "assistant":
            raise RequestError(
                f"messages[{index}].content is missing", param=f"messages[{index}].content"
            )
        plain["content"] = ""
    if message.get("tool_calls"):
        plain["tool_calls"] = _tool_calls(message["tool_calls"], f"messages[{index}].tool_calls")
    return plain


def _text(content: Any, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where}: expected a string or a list of parts", param=where)
    parts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind not in ("text", "refusal") or not isinstance(text, str):
            raise RequestError(
                f"{where}[{i}]: this model reads text parts only, came type {kind!r}",
                param=f"{where}[{i}].type",
            )
        parts.append(text)
    return "".join(parts)


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError(f"{where}: expected a list", param=where)
    plain = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"{where}[{i}]: expected a function with a name", param=where)
        arguments = _arguments(function.get("arguments"))
        plain.append({**call, "function": {**function, "arguments": arguments}})
    return plain


def _arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        # What a model once wrote need not be JSON; the template gets it as it is.
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


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
    context = _least(model.max_model_tokens, limits.max_request_tokens)
    longest = _least(config.max_prompt_tokens, limits.max_prompt_tokens, context and context - 1)
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


def _least(*limits: int) -> int:
    """Return the smallest limit that is set (above 0), or 0."""
    return min((limit for limit in limits if limit > 0), default=0)
