"""Small byte-level tokenizers in the file format of released models."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from headrace.text.tokenizer import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>")


def tokenizer_json(*, added_tags: bool = True, merges: tuple[tuple[str, str], ...] = ()) -> str:
    """Return a ``tokenizer.json`` whose first 256 tokens are the single bytes, in byte order.

    Args:
        added_tags: Have the reasoning tags as (not special) tokens, as Qwen3 does.
        merges: BPE merges, in the letters that stand for bytes.
    """
    letters = byte_letters()
    vocab = {letter: byte for byte, letter in enumerate(letters)}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    if added_tags:
        backend.add_tokens(list(TAGS))
    return backend.to_str()


def byte_tokenizer(**options: Any) -> Tokenizer:
    """Return a tokenizer of single bytes plus special tokens: token id == byte."""
    return Tokenizer.from_json(tokenizer_json(**options), where="test")


def edited_json(**fields: Any) -> str:
    """Return a ``tokenizer.json`` with top-level fields replaced."""
    return json.dumps({**json.loads(tokenizer_json()), **fields})


def byte_letters() -> list[str]:
    """Return the letter that stands for each byte in byte-level vocabularies.

    The library's alphabet has no order; printable bytes stand for themselves in it, and the
    letters past U+0100 for the other bytes in order.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    found = {ord(letter): letter for letter in alphabet if ord(letter) < 256}
    others = [letter for letter in alphabet if ord(letter) >= 256]
    missing = [byte for byte in range(256) if byte not in found]
    found.update(zip(missing, others, strict=True))
    return [found[byte] for byte in range(256)]
