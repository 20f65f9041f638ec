"""Log-probabilities in the two shapes that OpenAI's API has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.messages import TokenLogprob
from headrace.serving.openai.ports import Tokenizer


def token_text(data: bytes) -> str:
    r"""Return a token's bytes as text, never empty for a token that has bytes.

    Part of a character is written out as OpenAI does, so that different tokens look different.

    Example:
        >>> token_text(b"a"), token_text(b"\xf0\x9f")
        ('a', 'bytes:\\xf0\\x9f')
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the ``logprobs`` object of a chat choice: raw ``bytes`` beside every text."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token_id)
        return {"token": token_text(data), "logprob": _finite(logprob), "bytes": list(data)}

    content = [
        {
            **entry(token.token_id, token.logprob),
            "top_logprobs": [entry(*alternative) for alternative in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    tokens: Sequence[TokenLogprob], tokenizer: Tokenizer, *, offset: int
) -> dict[str, Any]:
    """Return the ``logprobs`` object of a completion choice.

    ``bytes`` and ``top_bytes`` are extensions: the raw bytes behind ``tokens`` and, in the order
    of each ``top_logprobs``, behind the alternatives.

    Args:
        tokens: The choice's tokens, or the next run of them.
        tokenizer: Gives bytes.
        offset: Characters before the first of ``tokens``.
    """
    data = [tokenizer.token_bytes(token.token_id) for token in tokens]
    offsets = []
    for piece in data:
        offsets.append(offset)
        offset += num_chars(piece)
    tops = [
        [(tokenizer.token_bytes(token_id), logprob) for token_id, logprob in token.top]
        for token in tokens
    ]
    return {
        "tokens": [token_text(piece) for piece in data],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {token_text(piece): _finite(logprob) for piece, logprob in top} for top in tops
        ],
        "text_offset": offsets,
        "bytes": [list(piece) for piece in data],
        "top_bytes": [[list(piece) for piece, _ in top] for top in tops],
    }


def num_chars(data: bytes) -> int:
    """Return how many characters begin in ``data`` (UTF-8 continuation bytes begin none)."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


def total_chars(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer) -> int:
    """Return how many characters begin in a run of tokens."""
    return sum(num_chars(tokenizer.token_bytes(token.token_id)) for token in tokens)


def _finite(logprob: float) -> float:
    # JSON has no infinity; OpenAI shows an impossible token so.
    return max(logprob, -9999.0)
