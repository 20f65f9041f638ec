"""Text becomes tokens and rows without losing any, and back."""

import lzma
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny_trainer import DOCUMENTS, SIZES, tokenizer
from tools.tiny.corpus import (
    END_OF_TEXT,
    MARKUP_TOKENS,
    SPECIAL_TOKENS,
    encode,
    pack,
    read_documents,
    train_tokenizer,
)

SEPARATOR = f"\n{END_OF_TEXT}\n"
any_text = st.text(st.characters(exclude_categories=["Cs"]))


def numbered(lengths: list[int]) -> list[np.ndarray]:
    """Documents of these lengths; document i is made of the numbers from 100 i on."""
    return [np.arange(n, dtype=np.int16) + 100 * i for i, n in enumerate(lengths)]


@pytest.mark.parametrize("name", ["text.txt", "text.txt.xz"])
def test_every_closed_document_is_read_unchanged(tmp_path: Path, name: str) -> None:
    documents = ["one", "two\n\nlines\n", " <|endoftext|> inside a line", "caf\u00e9 \U0001f98a"]
    content = "".join(document + SEPARATOR for document in documents).encode()
    (tmp_path / name).write_bytes(lzma.compress(content) if name.endswith("xz") else content)
    assert read_documents(tmp_path / name) == documents


def test_a_file_without_a_document_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt holds no document"):
        read_documents(tmp_path / "empty.txt")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text.txt", b"caf\xe9"),
        ("text.xz", b"no archive"),
        ("text.xz", lzma.compress(b"a" * 99)[:-9]),
    ],
    ids=["latin-1", "not compressed", "cut off"],
)
def test_a_file_that_is_no_text_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is not readable as text: "):
        read_documents(tmp_path / name)


@given(any_text)
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    ids = tokenizer().encode(text).ids
    assert tokenizer().decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["e\u0301", "\ufb01", "\u212b", "\r\n\t  x", "\x00"])
def test_unicode_is_not_normalised(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text).ids) == text


@pytest.mark.parametrize("token", SPECIAL_TOKENS + MARKUP_TOKENS)
def test_each_mark_is_one_token_wherever_it_stands(token: str) -> None:
    (alone,) = tokenizer().encode(token).ids
    assert tokenizer().encode(f"so{token}it").ids.count(alone) == 1
    assert alone == tokenizer().token_to_id(token)


def test_only_special_tokens_vanish_when_decoding_without_them() -> None:
    ids = tokenizer().encode("".join(SPECIAL_TOKENS + MARKUP_TOKENS)).ids
    assert tokenizer().decode(ids) == "".join(MARKUP_TOKENS)


def test_every_byte_has_its_own_token_and_the_marks_come_last() -> None:
    vocabulary = tokenizer().get_vocab()
    marks = {vocabulary[token] for token in SPECIAL_TOKENS + MARKUP_TOKENS}
    assert sorted(vocabulary.values()) == list(range(SIZES.vocab_size))
    assert marks == set(range(SIZES.vocab_size - 9, SIZES.vocab_size))
    # The byte-level alphabet spells each byte as one character, and nothing longer does.
    assert sum(len(entry) == 1 for entry in vocabulary) == 256


def test_digits_stand_alone() -> None:
    numbers = train_tokenizer(["2024 2024 2024 2024 and the end of the garden"], 280)
    assert [numbers.decode([i]) for i in numbers.encode("2024").ids] == ["2", "0", "2", "4"]


def test_the_same_text_gives_the_same_tokenizer() -> None:
    assert train_tokenizer(DOCUMENTS, SIZES.vocab_size).to_str() == tokenizer().to_str()


def test_too_little_text_for_the_vocabulary_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=re.escape("yields 266 tokens, not 300")):
        train_tokenizer(["a b"], 300)  # 256 bytes, 9 marks, one pair


def test_each_encoded_document_ends_with_the_end_of_text() -> None:
    encoded = encode(tokenizer(), [*DOCUMENTS, "caf\u00e9"])
    end = tokenizer().token_to_id(END_OF_TEXT)
    assert [tokenizer().decode(ids[:-1]) for ids in encoded] == [*DOCUMENTS, "caf\u00e9"]
    assert all(ids[-1] == end and end not in ids[:-1] for ids in encoded)


def test_encoding_in_several_batches_keeps_every_document_in_order() -> None:
    texts = [str(i) for i in range(4100)]
    encoded = encode(tokenizer(), texts)
    assert [tokenizer().decode(ids) for ids in encoded] == texts


def test_a_cut_document_starts_the_next_row_again() -> None:
    rows = pack(numbered([3, 4, 2]), 5)
    assert rows.tolist() == [[0, 1, 2, 100, 101], [100, 101, 102, 103, 200]]


def test_a_document_longer_than_a_row_gives_its_beginning() -> None:
    assert pack(numbered([7, 5]), 5).tolist() == [[0, 1, 2, 3, 4], [100, 101, 102, 103, 104]]


def test_too_little_text_for_a_row_gives_none() -> None:
    assert pack(numbered([3]), 5).shape == (0, 5)
    assert pack([], 5).shape == (0, 5)


@given(st.lists(st.integers(1, 12), max_size=30), st.integers(2, 8))
def test_packing_loses_no_document_before_the_last_unfilled_row(
    lengths: list[int], length: int
) -> None:
    documents = numbered(lengths)
    rows = pack(documents, length)
    assert rows.shape[1] == length
    # Every row begins with a document's first token, and is one run of whole documents but the
    # last; so what a model sees in front of a token is what a served prompt has there.
    seen: set[int] = set()
    for row in rows.tolist():
        ids = list(dict.fromkeys(token // 100 for token in row))
        joined = np.concatenate([documents[i] for i in ids])
        assert row == joined[:length].tolist()
        assert ids == list(range(ids[0], ids[-1] + 1))
        whole = ids if len(joined) <= length else ids[:-1]
        seen |= set(whole) | {i for i in ids if lengths[i] >= length}
    assert seen == set(range(len(seen)))
    left = [n for i, n in enumerate(lengths) if i not in seen]
    assert sum(left) < length or not rows.size
