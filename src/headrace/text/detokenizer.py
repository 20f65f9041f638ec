"""Token ids to text, one token at a time, releasing whole characters only.

A character may be spread over tokens (an emoji over four): its bytes are held until the last one
came. Graphemes need no such care, because text that arrives scalar by scalar joins to the same
string; so a combining mark is sent once, after the letter that is already out.
"""

from __future__ import annotations

import codecs

from headrace.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental decoder of one sequence; its state lasts as long as the sequence.

    Args:
        tokenizer: The model's tokenizer.
        skip_special_tokens: Leave special tokens out of the text.

    Guarantees:
        * The joined text equals the whole sequence's bytes decoded at once, for any split.
        * U+FFFD comes only for bytes that are no UTF-8, one for each maximal run that Python's
          decoder replaces by one; a cut last character gives one, at ``finish``.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take one token; return the characters that it completed, possibly none."""
        if token_id in self._hidden:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """Return what is left of a cut character: nothing, or one U+FFFD."""
        return self._decoder.decode(b"", final=True)
