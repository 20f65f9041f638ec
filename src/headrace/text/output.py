"""From a sequence's tokens to the text a client may see: the decode rank's one door to ``text``.

One stream a sequence: detokenizer, stop strings and reasoning count in the order in which tokens
pass them. It is plain state with no clock and no memory of the batch, so a preempted sequence
keeps its stream and goes on, and pushing the same tokens into a fresh stream restores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.text.detokenizer import Detokenizer
from headrace.text.reasoning import ReasoningCounter, opens_reasoning
from headrace.text.stop import StopChecker
from headrace.text.tokenizer import Tokenizer

_PROMPT_TAIL_TOKENS = 32  # enough for a spelled-out tag and the white space after it


class TextDelta(NamedTuple):
    """What one token added.

    Attributes:
        text: Safe to show: whole characters, no part of a stop string.
        is_stopped: A stop string ended the sequence; nothing more may be pushed or shown.
        offset: Characters of output decoded before this token, held ones included [characters].
    """

    text: str
    is_stopped: bool
    offset: int


class OutputTextStream:
    """Text side of one output sequence.

    Args:
        tokenizer: The model's tokenizer.
        prompt_ids: The prompt, whose end may have opened the reasoning.
        stop: Stop strings.
        include_stop: Show the stop string that ended the text.
        skip_special_tokens: Leave special tokens out of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        tail = tokenizer.decode_bytes(prompt_ids[-_PROMPT_TAIL_TOKENS:])
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._checker = StopChecker(stop, include_stop=include_stop)
        self._reasoning = ReasoningCounter(is_open=opens_reasoning(tail))
        self._num_decoded = 0

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens up to and including ``</think>``, if the text opened with reasoning."""
        return self._reasoning.num_tokens

    def push(self, token_id: int, *, is_shown: bool = True) -> TextDelta:
        """Take the next output token.

        Args:
            token_id: The sampled token.
            is_shown: False for the token that ended the sequence by its id (EOS or a stop token):
                it counts, but is no text.
        """
        self._reasoning.push(self._tokenizer.token_bytes(token_id))
        offset = self._num_decoded
        text = self._detokenizer.push(token_id) if is_shown else ""
        self._num_decoded += len(text)
        checked = self._checker.push(text)
        return TextDelta(checked.text, checked.stop is not None, offset)

    def finish(self) -> str:
        """Return the text still held, once the sequence ended; empty after a stop string.

        A character cut off by the limit becomes one U+FFFD.
        """
        return self._checker.push(self._detokenizer.finish()).text + self._checker.finish()
