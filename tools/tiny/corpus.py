"""From text files to packed rows of token ids, and the tokenizer in between.

A text file holds documents, each closed by a line ``<|endoftext|>``.  Rows are packed so
that each begins with a document's first token, because that is what a served prompt looks like.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|im_start|>", "<|im_end|>")
# As in Qwen3, these are single tokens but not special: decoding keeps them in the text.
MARKUP_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Qwen's split into words: contractions, words with one leading mark, single digits,
# runs of punctuation, line ends, blanks.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_documents(path: Path) -> list[str]:
    """Documents of a text file (plain or ``.xz``), without the line end before the separator.

    Raises:
        ValueError: if the file is no UTF-8 text, or holds no document.
    """
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            documents = file.read().split(f"\n{END_OF_TEXT}\n")
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is not readable as text: {error}") from error
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"{path} holds no document")
    return documents


def train_tokenizer(documents: Sequence[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE of exactly ``vocab_size`` entries, all 256 bytes among them.

    There is no Unicode normalisation (Qwen has NFC), so that every text round-trips.
    """
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    marks = re.compile("|".join(map(re.escape, SPECIAL_TOKENS + MARKUP_TOKENS)))
    pieces = (piece for document in documents for piece in marks.split(document))
    tokenizer.train_from_iterator(pieces, trainer)
    # After the training, so that their ids come last, as in Qwen.
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in MARKUP_TOKENS])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the text yields {tokenizer.get_vocab_size()} tokens, not {vocab_size}: give more text"
        )
    return tokenizer


def encode(tokenizer: Tokenizer, documents: Sequence[str]) -> list[np.ndarray]:
    """Token ids of each document, closed by ``<|endoftext|>``."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded: list[np.ndarray] = []
    # In batches: the intermediate objects of a whole corpus would take tens of gigabytes.
    for first in range(0, len(documents), 4096):
        for item in tokenizer.encode_batch_fast(list(documents[first : first + 4096])):
            encoded.append(np.array([*item.ids, end], dtype=np.int16))
    return encoded


def pack(encoded: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Rows ``[R, length]`` of consecutive documents; the last, unfilled row is dropped.

    A document cut off by the end of a row starts the next row again, from its first token;
    of a document longer than a row, what does not fit is dropped.
    """
    rows: list[np.ndarray] = []
    row: list[np.ndarray] = []
    room = length
    for ids in encoded:
        row.append(ids[:room])
        room -= len(ids)
        if room > 0:
            continue
        rows.append(np.concatenate(row))
        cut = room < 0 and len(ids) < length
        row, room = ([ids], length - len(ids)) if cut else ([], length)
    return np.stack(rows) if rows else np.empty((0, length), dtype=np.int16)
