"""The answer that is not streamed: outputs gathered into one JSON object."""

from __future__ import annotations

from typing import Any

from headrace.core.messages import Output, TokenLogprob
from headrace.core.requests import FinishReason, Ledger
from headrace.serving.openai.logprobs import chat_logprobs, text_logprobs
from headrace.serving.openai.options import AnswerOptions
from headrace.serving.openai.ports import Tokenizer
from headrace.serving.openai.usage import Usage


class _Choice:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.ledger: Ledger | None = None


class WholeAnswer:
    """Gathers the outputs of one request.

    Args:
        options: What the client asked for.
        tokenizer: Gives the bytes of tokens, for log-probabilities.
    """

    def __init__(self, options: AnswerOptions, tokenizer: Tokenizer) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._choices: dict[int, _Choice] = {}

    def add(self, index: int, output: Output) -> None:
        """Take in one output of choice ``index``."""
        choice = self._choices.setdefault(index, _Choice())
        choice.texts.append(output.text)
        choice.token_ids.extend(output.token_ids)
        choice.logprobs.extend(output.logprobs or ())
        if output.finish_reason is not None:
            choice.finish_reason = output.finish_reason
            choice.ledger = output.ledger

    def body(self, usage: Usage) -> dict[str, Any]:
        """Return the answer, once every choice has ended."""
        options = self._options
        return {
            "id": options.answer_id,
            "object": "chat.completion" if options.is_chat else "text_completion",
            "created": options.created_s,
            "model": options.model,
            "choices": [
                self._choice(index, choice) for index, choice in sorted(self._choices.items())
            ],
            "usage": usage.to_dict(),
        }

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        options = self._options
        text = "".join(choice.texts)
        body: dict[str, Any] = {"index": index}
        if options.is_chat:
            body["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            body["text"] = (options.echo[index] if options.echo else "") + text
        body["logprobs"] = self._logprobs(choice) if options.has_logprobs else None
        body["finish_reason"] = choice.finish_reason
        if options.return_token_ids:
            body["token_ids"] = choice.token_ids
        if options.return_ledger:
            body["ledger"] = choice.ledger
        return body

    def _logprobs(self, choice: _Choice) -> dict[str, Any]:
        if self._options.is_chat:
            return chat_logprobs(choice.logprobs, self._tokenizer)
        return text_logprobs(choice.logprobs, self._tokenizer, offset=0)
