"""Counts the tokens of a sequence's reasoning: from ``<think>`` to the closing ``</think>``.

It looks at bytes, not token ids, so that it counts alike whether a tokenizer knows the tags as
tokens, as special tokens, or spells them. Splitting reasoning from content is the parser's task.
"""

from __future__ import annotations

OPEN = b"<think>"
CLOSE = b"</think>"


def opens_reasoning(prompt_tail: bytes) -> bool:
    """Whether a prompt ends with an opened ``<think>``, as templates that force it do.

    Only the very end counts: a tag that a user wrote, or one that the template closed again,
    does not open the answer's reasoning.
    """
    return prompt_tail.rstrip().endswith(OPEN)


class ReasoningCounter:
    """Token by token count of one sequence.

    Args:
        is_open: The prompt opened the reasoning.

    Attributes:
        num_tokens: Reasoning tokens so far, tags included [tokens].
    """

    def __init__(self, *, is_open: bool) -> None:
        self.num_tokens = 0
        self._is_open = is_open
        self._is_done = False
        self._tail = b""  # bytes in which a tag may have begun
        self._num_undecided = 0  # tokens seen before it is clear whether the output opens

    def push(self, token_bytes: bytes) -> None:
        """Take the bytes of the next output token."""
        if self._is_done:
            return
        self._tail += token_bytes
        if self._is_open:
            self.num_tokens += 1
        else:
            self._num_undecided += 1
            self._look_for_open()
        if self._is_open:
            self._look_for_close()

    def _look_for_open(self) -> None:
        text = self._tail.lstrip()
        if text.startswith(OPEN):
            self._is_open = True
            self._tail = text[len(OPEN) :]
            self.num_tokens = self._num_undecided
        elif not OPEN.startswith(text):
            self._is_done = True  # the output began with something else

    def _look_for_close(self) -> None:
        if CLOSE in self._tail:
            self._is_done = True
        else:
            self._tail = self._tail[-len(CLOSE) + 1 :]
