"""No text has fewer tokens than the bound says, and where that is not sure there is no bound."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.token_bound import max_bytes_per_token
from headrace.text.tokenizer import Tokenizer
from tests.support.text_tokenizers import edited_json, tokenizer_json

NFC = {"type": "NFC"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
# What composition shortens most, beside ordinary text and special tokens.
SHRINKING = [
    "\u1112\u1161\u11ab",
    "\u1fef",
    "\u212a",
    "e\u0301",
    "<|im_start|>",
    "ab",
    " ",
    "\u4e2d",
]


def bound(**fields: Any) -> int:
    spec = json.loads(edited_json(**fields))
    return max_bytes_per_token(spec, [b"a", b"<|im_start|>"])


@given(pieces=st.lists(st.sampled_from(SHRINKING), max_size=40), is_composed=st.booleans())
def test_no_text_has_fewer_tokens_than_the_bound_says(pieces: list[str], is_composed: bool) -> None:
    text = "".join(pieces)
    spec = json.loads(tokenizer_json(merges=(("a", "b"),)))
    spec["normalizer"] = NFC if is_composed else None
    tokenizer = Tokenizer.from_json(json.dumps(spec), where="test")
    num_bytes = len(text.encode())
    assert tokenizer.fewest_tokens(num_bytes) <= len(tokenizer.encode(text))
    assert num_bytes == 0 or tokenizer.fewest_tokens(num_bytes) > 0


def test_the_bound_is_the_longest_token_times_what_normalizing_shortens() -> None:
    assert bound() == 12
    assert bound(normalizer=NFC) == 36
    assert bound(normalizer={"type": "Sequence", "normalizers": [NFC, NFC]}) == 36
    assert bound(normalizer={"type": "Sequence", "normalizers": []}) == 12
    split = {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": False}
    assert bound(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, BYTES]}) == 12
    assert bound(pre_tokenizer=None) == 12


@pytest.mark.parametrize(
    "fields",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Sequence", "normalizers": [NFC, {"type": "StripAccents"}]}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"}},
        {"truncation": {"max_length": 4}},
        {"added_tokens": [{"id": 0, "content": "<m>", "lstrip": True, "rstrip": False}]},
    ],
    ids=["strip", "sequence", "split", "removed", "truncation", "swallowing"],
)
def test_what_may_drop_text_has_no_bound(fields: dict[str, Any]) -> None:
    assert bound(**fields) == 0
