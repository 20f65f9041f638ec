"""Text to token ids and back to bytes, from a model folder's ``tokenizer.json``.

Only byte-level BPE is read (every Qwen tokenizer is): each token then *is* a byte string, and
the decoder may cut text anywhere without a token's meaning depending on its neighbours. Chat
templates are ``chat_template``'s business, and which ids end a sequence is the model config's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from headrace.core.errors import CheckpointError
from headrace.text.token_bound import max_bytes_per_token


class Tokenizer:
    """A model's tokenizer with the bytes of every token. Immutable, so safe to share.

    Args:
        backend: The library's tokenizer; its decoder must be byte-level.
        token_bytes: Bytes of each token by id, specials as their own text.
        special_ids: Tokens that are never part of the text.
        max_bytes_per_token: Most bytes of text that one token stands for; 0 is unknown.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        token_bytes: list[bytes],
        special_ids: frozenset[int],
        *,
        max_bytes_per_token: int = 0,
    ) -> None:
        self.special_ids = special_ids
        self._max_bytes_per_token = max_bytes_per_token
        self._backend = backend
        self._token_bytes = token_bytes

    @classmethod
    def open(cls, folder: Path) -> Tokenizer:
        """Read ``tokenizer.json`` of a model folder.

        Raises:
            CheckpointError: Missing, truncated, or not byte-level BPE.
        """
        path = folder / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{folder}: no tokenizer.json; copy it from the model's release"
            ) from error
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path}: not UTF-8 text: {error}") from error
        return cls.from_json(text, where=str(path))

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Tokenizer:
        """Make a tokenizer from the text of a ``tokenizer.json``; ``where`` names it in errors."""
        try:
            spec = json.loads(text)
            decoder = spec.get("decoder")
        except (ValueError, AttributeError) as error:
            raise CheckpointError(f"{where}: not a JSON object (truncated?): {error}") from error
        if not _is_byte_level(decoder):
            kind = decoder.get("type") if isinstance(decoder, dict) else decoder
            raise CheckpointError(f"{where}: decoder {kind!r}: only ByteLevel BPE is supported")
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for any unreadable file
            raise CheckpointError(f"{where}: not a readable tokenizer: {error}") from error
        added = backend.get_added_tokens_decoder()
        special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        table = _byte_table(backend, where)
        return cls(
            backend, table, special_ids, max_bytes_per_token=max_bytes_per_token(spec, table)
        )

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id; a model may have more (padded) rows [tokens]."""
        return len(self._token_bytes)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of ``text``; special tokens written in it are recognised.

        Args:
            text: What to encode.
            add_special_tokens: Let the tokenizer add its own, e.g. a BOS; a rendered chat
                template already holds them, a plain completion prompt does not.
        """
        # The batch call, unlike the single one, releases the GIL: in a worker thread a long text
        # leaves the event loop running. It also keeps no offsets, which nobody asks for.
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return batch[0].ids

    def fewest_tokens(self, num_bytes: int) -> int:
        """Return how few tokens a text of so many bytes can have; 0 is unknown."""
        return -(-num_bytes // self._max_bytes_per_token) if self._max_bytes_per_token else 0

    def token_id(self, text: str) -> int | None:
        """Return the id of the token written exactly so (``<think>``), or None."""
        return self._backend.token_to_id(text)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes of one token, not always whole characters.

        Ids without a token (padding rows of a model's vocabulary) have no bytes.
        """
        if 0 <= token_id < len(self._token_bytes):
            return self._token_bytes[token_id]
        return b""

    def decode_bytes(self, token_ids: Iterable[int]) -> bytes:
        """Return the joined bytes of tokens, special ones included."""
        return b"".join(map(self.token_bytes, token_ids))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of a whole sequence at once; bytes that are no text become U+FFFD."""
        shown = (
            token_id
            for token_id in token_ids
            if not (skip_special_tokens and token_id in self.special_ids)
        )
        return self.decode_bytes(shown).decode("utf-8", errors="replace")


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return any(map(_is_byte_level, decoder.get("decoders", ())))
    return decoder.get("type") == "ByteLevel"


def _byte_table(backend: tokenizers.Tokenizer, where: str) -> list[bytes]:
    added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
    vocab = {**backend.get_vocab(with_added_tokens=False)}
    table = [b""] * (max([*vocab.values(), *added], default=-1) + 1)
    byte_of = _byte_of_letter()
    for letters, token_id in vocab.items():
        if token_id in added:
            continue
        try:
            table[token_id] = bytes(byte_of[letter] for letter in letters)
        except KeyError as error:
            raise CheckpointError(
                f"{where}: token {token_id} {letters!r}: {error} stands for no byte; "
                f"only ByteLevel BPE is supported"
            ) from error
    for token_id, content in added.items():
        table[token_id] = content.encode()
    return table


def _byte_of_letter() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Printable bytes stand for themselves; the others, in order, for the letters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}
