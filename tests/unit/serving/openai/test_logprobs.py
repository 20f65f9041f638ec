"""Alternatives are never empty: their raw bytes are there whatever they decode to (H26)."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.messages import TokenLogprob
from headrace.serving.openai.logprobs import (
    chat_logprobs,
    num_chars,
    text_logprobs,
    token_text,
    total_chars,
)
from tests.support.serving_fakes import ByteTokenizer


@given(st.integers(0, 255), st.lists(st.integers(0, 255), max_size=20))
def test_every_token_and_alternative_carries_its_raw_bytes(token: int, top: list[int]) -> None:
    logprob = TokenLogprob(token, -1.0, [(one, -2.0) for one in top])
    (entry,) = chat_logprobs([logprob], ByteTokenizer())["content"]
    assert entry["bytes"] == [token]
    assert [one["bytes"] for one in entry["top_logprobs"]] == [[one] for one in top]
    assert all(one["token"] for one in [entry, *entry["top_logprobs"]])
    text = text_logprobs([logprob], ByteTokenizer(), offset=0)
    assert text["bytes"] == [[token]]
    assert text["top_bytes"] == [[[one] for one in top]]
    assert all(text["tokens"])


def test_parts_of_characters_look_different_from_each_other() -> None:
    assert token_text("\ud55c".encode()) == "\ud55c"
    assert {token_text(bytes([byte])) for byte in range(0x80, 0x100)} == {
        f"bytes:\\x{byte:02x}" for byte in range(0x80, 0x100)
    }


def test_an_impossible_token_has_a_number_that_json_can_hold() -> None:
    impossible = TokenLogprob(65, float("-inf"), [(66, float("-inf"))])
    (entry,) = chat_logprobs([impossible], ByteTokenizer())["content"]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    assert text_logprobs([impossible], ByteTokenizer(), offset=0)["token_logprobs"] == [-9999.0]


def test_text_offsets_count_characters_not_bytes() -> None:
    tokens = [TokenLogprob(byte, -1.0, []) for byte in "a\ud55cb".encode()]
    whole = text_logprobs(tokens, ByteTokenizer(), offset=0)
    assert whole["text_offset"] == [0, 1, 2, 2, 2]
    split = total_chars(tokens[:2], ByteTokenizer())
    rest = text_logprobs(tokens[2:], ByteTokenizer(), offset=split)
    assert rest["text_offset"] == whole["text_offset"][2:]


@given(st.text())
def test_characters_are_counted_once_however_bytes_are_cut(text: str) -> None:
    assert sum(num_chars(bytes([byte])) for byte in text.encode()) == len(text)
