"""From messages or a ``prompt`` to token ids, with long texts tokenized off the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.core.errors import RequestError
from headrace.serving.openai.bodies import ChatBody, CompletionBody
from headrace.serving.openai.lengths import check_text
from headrace.serving.openai.ports import ChatTemplate, Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Prompt = str | list[int]
T = TypeVar("T")


async def chat_prompt(
    body: ChatBody,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    *,
    longest: int = 0,
    in_thread: bool = False,
) -> list[int]:
    """Render ``body``'s messages and tokenize them.

    Args:
        body: The request.
        template: Messages to text.
        tokenizer: Text to ids.
        longest: Most tokens of a prompt; 0 knows no limit.
        in_thread: Do the work in a worker thread.

    Raises:
        RequestError: A message of the wrong shape, one that the template refuses, or a prompt
            that cannot fit.
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
        check_text(text, tokenizer, longest=longest, param="messages")
        return tokenizer.encode(text)

    return await _run(run, in_thread=in_thread)


async def completion_prompts(
    body: CompletionBody,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    longest: int = 0,
    in_thread: bool = False,
) -> list[list[int]]:
    """Return the ids of every prompt of ``body``, in order; arguments as in ``chat_prompt``.

    Raises:
        RequestError: An empty list, mixed kinds, an id outside the vocabulary, or a prompt that
            cannot fit.
    """
    prompts = split_prompts(body.prompt)

    def ids(prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            _check_ids(prompt, vocab_size)
            return prompt
        check_text(prompt, tokenizer, longest=longest, param="prompt")
        # A chat template writes its own BOS; a plain prompt gets what the tokenizer adds.
        return tokenizer.encode(prompt, add_special_tokens=True)

    return await _run(lambda: [ids(prompt) for prompt in prompts], in_thread=in_thread)


async def _run(work: Callable[[], T], *, in_thread: bool) -> T:
    # A hop to a thread costs more than a short text; a long one would hold up every stream.
    return await asyncio.to_thread(work) if in_thread else work()


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
