"""Only whole characters come out, each once, whatever the tokens cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.detokenizer import Detokenizer
from tests.support.text_tokenizers import byte_tokenizer

TOKENIZER = byte_tokenizer()
REPLACEMENT = "\ufffd"
KOREAN_AND_FAMILY = "\uc0bc\uacb9\uc0b4 \U0001f469\u200d\U0001f467"
JAPANESE_FLAG = "\U0001f1ef\U0001f1f5"


def deltas(raw: bytes) -> list[str]:
    """Push one byte a token; the last entry is what ``finish`` gave."""
    detokenizer = Detokenizer(TOKENIZER)
    return [detokenizer.push(byte) for byte in raw] + [detokenizer.finish()]


def test_korean_and_joined_emoji_arrive_whole_one_byte_a_token():
    parts = deltas(KOREAN_AND_FAMILY.encode())
    assert "".join(parts) == KOREAN_AND_FAMILY
    assert all(REPLACEMENT not in part for part in parts)
    assert all(len(part) <= 1 for part in parts)


@pytest.mark.parametrize("text", [KOREAN_AND_FAMILY, "\uc0bc", "\U0001f467", "a\u00e9"])
def test_a_cut_tail_gives_at_most_one_replacement_character(text: str):
    raw = text.encode()
    for end in range(len(raw)):
        *parts, last = deltas(raw[:end])
        assert REPLACEMENT not in "".join(parts), "a cut character is held, not guessed"
        assert last in ("", REPLACEMENT)
        assert text.startswith("".join(parts))


@pytest.mark.parametrize(
    "text", ["e\u0301x", JAPANESE_FLAG, "\U0001f44d\U0001f3fd", "\u0928\u093f"]
)
def test_each_scalar_comes_once_when_marks_and_flags_join(text: str):
    assert [part for part in deltas(text.encode()) if part] == list(text)


def test_a_combining_mark_in_its_own_token_is_sent_alone():
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push(ord("e")) == "e"
    assert [detokenizer.push(byte) for byte in "\u0301".encode()] == ["", "\u0301"]
    assert detokenizer.push(ord("x")) == "x"


def test_special_tokens_are_left_out_unless_wanted():
    end = TOKENIZER.token_id("<|im_end|>")
    assert Detokenizer(TOKENIZER).push(end) == ""
    assert Detokenizer(TOKENIZER, skip_special_tokens=False).push(end) == "<|im_end|>"


def test_added_tokens_that_are_not_special_are_text():
    assert Detokenizer(TOKENIZER).push(TOKENIZER.token_id("<think>")) == "<think>"


def test_ids_without_a_token_add_nothing():
    assert Detokenizer(TOKENIZER).push(TOKENIZER.vocab_size + 7) == ""


@given(raw=st.binary(max_size=24))
def test_any_bytes_decode_as_they_would_at_once(raw: bytes):
    assert "".join(deltas(raw)) == raw.decode("utf-8", errors="replace")


@given(text=st.text())
def test_valid_text_never_shows_a_replacement_character(text: str):
    text = text.replace(REPLACEMENT, "")
    assert "".join(deltas(text.encode())) == text


@given(text=st.text(max_size=8), tail=st.integers(1, 3))
def test_what_is_out_is_always_a_prefix_of_the_whole(text: str, tail: int):
    out = ""
    for part in deltas(text.encode()):
        out += part
        assert text.startswith(out)
    assert out == text
