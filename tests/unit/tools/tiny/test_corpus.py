"""Packing keeps document starts at row starts; the tokenizer covers every byte."""

import lzma
from pathlib import Path

import numpy as np
import pytest

from tools.tiny import corpus

HELDOUT = Path(__file__).parents[3] / "data" / "heldout_grammar.txt"


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int16)


@pytest.mark.parametrize("compressed", [False, True])
def test_documents_lose_the_line_end_before_the_separator(tmp_path: Path, compressed: bool) -> None:
    data = b"one\n<|endoftext|>\ntwo\nlines\n<|endoftext|>\n"
    path = tmp_path / ("text.xz" if compressed else "text")
    path.write_bytes(lzma.compress(data) if compressed else data)
    assert corpus.read_documents(path) == ["one", "two\nlines"]


def test_a_cut_document_starts_the_next_row_again() -> None:
    rows = corpus.pack([ids(1, 2, 3), ids(4, 5), ids(6)], 4)
    assert rows.tolist() == [[1, 2, 3, 4]]
    rows = corpus.pack([ids(1, 2, 3), ids(4, 5), ids(6, 7)], 4)
    assert rows.tolist() == [[1, 2, 3, 4], [4, 5, 6, 7]]


def test_what_exceeds_a_row_is_dropped() -> None:
    rows = corpus.pack([ids(1, 2, 3, 4, 5), ids(6, 7, 8, 9)], 4)
    assert rows.tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]


def test_text_that_fills_no_row_gives_none() -> None:
    assert corpus.pack([ids(1)], 4).shape == (0, 4)


def test_the_tokenizer_round_trips_any_text_and_keeps_marks_whole() -> None:
    documents = corpus.read_documents(HELDOUT)
    tokenizer = corpus.train_tokenizer(documents, 600)
    assert tokenizer.get_vocab_size() == 600
    wild = "e\u0301 \u2603 \U0001f389\x00\t\r\n" + "".join(map(chr, range(32, 256)))
    for text in (documents[0], wild):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<think></tool_call>").tokens == ["<think>", "</tool_call>"]
    assert corpus.encode(tokenizer, ["a"])[0][-1] == tokenizer.token_to_id("<|endoftext|>")


def test_too_little_text_for_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="give more text"):
        corpus.train_tokenizer(["only this"], 600)
