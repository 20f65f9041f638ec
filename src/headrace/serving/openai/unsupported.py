"""Fields that OpenAI's API has and this server cannot honour: refused, never ignored."""

from __future__ import annotations

from headrace.core.errors import RequestError
from headrace.serving.openai.bodies import ChatBody, CompletionBody


def refuse_unsupported(body: ChatBody | CompletionBody) -> None:
    """Raise ``RequestError`` (status 400, naming the field) for the first such field."""
    if body.stream_options is not None and not body.stream:
        raise _refusal("stream_options", "only allowed with stream=true")
    if isinstance(body, ChatBody):
        _refuse_chat(body)
    else:
        _refuse_completion(body)


def _refuse_chat(body: ChatBody) -> None:
    if body.tool_choice not in (None, "none", "auto"):
        raise _refusal(
            "tool_choice", f"{body.tool_choice!r} is not supported yet: use 'auto' or 'none'"
        )
    if body.response_format is not None and body.response_format.type != "text":
        raise _refusal(
            "response_format", f"{body.response_format.type!r} is not supported yet: use 'text'"
        )
    if body.modalities not in (None, ["text"]):
        raise _refusal("modalities", f"{body.modalities} came, this model gives ['text']")


def _refuse_completion(body: CompletionBody) -> None:
    n = body.n or 1
    if body.echo and body.logprobs is not None:
        raise _refusal("logprobs", "together with echo is not supported: leave one out")
    if body.best_of is not None and body.best_of != n:
        raise _refusal("best_of", f"{body.best_of} came with n={n}: only best_of = n is supported")
    if body.suffix:
        raise _refusal("suffix", "is not supported: put it into the prompt as the model wants it")


def _refusal(param: str, why: str) -> RequestError:
    return RequestError(f"{param}: {why}", param=param, code="unsupported_parameter")
