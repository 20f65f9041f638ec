"""How many bytes of text one token can stand for, read from a ``tokenizer.json``.

A text of so many bytes then has at least so many tokens, which is known without tokenizing it:
enough to refuse a prompt that cannot fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Composition shortens UTF-8 to a third at most: the 9 bytes of three Hangul letters become the 3
# of their syllable, and single characters of 3 bytes become 1 (U+1FEF, the Kelvin sign). Found by
# normalizing every character of Unicode.
_NFC_FACTOR = 3


def max_bytes_per_token(spec: Mapping[str, Any], token_bytes: Sequence[bytes]) -> int:
    """Return the most bytes of text that one token can stand for; 0 when there is no bound.

    Args:
        spec: The content of ``tokenizer.json``.
        token_bytes: Bytes of each token by id.

    Guarantees:
        A text of N bytes has at least N / bound tokens. Where the file asks for anything that
        might drop text unseen (an unknown normalizer, truncation, added tokens that swallow
        white space), there is none.
    """
    factor = _shrinking(spec.get("normalizer"))
    if not factor or spec.get("truncation") or not _keeps_all(spec.get("pre_tokenizer")):
        return 0
    if any(token.get("lstrip") or token.get("rstrip") for token in spec.get("added_tokens") or ()):
        return 0
    return factor * max(map(len, token_bytes), default=0)


def _shrinking(normalizer: Any) -> int:
    """Return how many bytes may become one; 0 if nothing is known."""
    if normalizer is None:
        return 1
    if normalizer.get("type") == "NFC":
        return _NFC_FACTOR
    parts = normalizer.get("normalizers")
    if normalizer.get("type") == "Sequence" and parts is not None:
        # NFC twice is NFC once.
        return min(map(_shrinking, parts), default=1) and max(map(_shrinking, parts), default=1)
    return 0


def _keeps_all(pre_tokenizer: Any) -> bool:
    if pre_tokenizer is None:
        return True
    match pre_tokenizer.get("type"):
        case "ByteLevel" | "Digits":
            return True
        case "Split":
            return bool(pre_tokenizer.get("behavior") != "Removed")
        case "Sequence":
            return all(map(_keeps_all, pre_tokenizer.get("pretokenizers", ())))
        case _:
            return False
