"""Token ids are byte strings: encoding loses nothing, and bad files are named in one line."""

import sys
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import CheckpointError
from headrace.text.tokenizer import Tokenizer
from tests.support.text_tokenizers import SPECIAL, byte_tokenizer, edited_json, tokenizer_json

TOKENIZER = byte_tokenizer()


@given(text=st.text())
def test_the_bytes_of_encoded_text_are_the_texts_own(text: str):
    token_ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode_bytes(token_ids) == text.encode()
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == text


def test_every_single_byte_has_its_token():
    assert [TOKENIZER.token_bytes(byte) for byte in range(256)] == [bytes([b]) for b in range(256)]


def test_merged_tokens_have_the_bytes_of_their_parts():
    # G with dot above stands for the space, as in every byte-level vocabulary.
    tokenizer = byte_tokenizer(merges=(("a", "b"), ("\u0120", "ab")))
    assert tokenizer.encode(" ab") == [257]
    assert tokenizer.token_bytes(257) == b" ab"


def test_special_tokens_are_recognised_in_text_and_left_out_of_it():
    token_ids = TOKENIZER.encode("a<|im_end|>b")
    assert token_ids == [ord("a"), TOKENIZER.token_id("<|im_end|>"), ord("b")]
    assert TOKENIZER.decode(token_ids) == "ab"
    assert TOKENIZER.decode_bytes(token_ids) == b"a<|im_end|>b"


def test_only_tokens_marked_special_are_special():
    assert TOKENIZER.special_ids == {TOKENIZER.token_id(each) for each in SPECIAL}
    assert TOKENIZER.token_id("<think>") not in TOKENIZER.special_ids
    assert TOKENIZER.token_id("<no such token>") is None


def test_ids_without_a_token_have_no_bytes():
    assert TOKENIZER.vocab_size == 256 + 5
    assert TOKENIZER.token_bytes(TOKENIZER.vocab_size) == b""
    assert TOKENIZER.token_bytes(-1) == b""


def test_a_bos_is_added_only_on_request():
    processor = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}
        },
    }
    tokenizer = Tokenizer.from_json(edited_json(post_processor=processor), where="test")
    assert tokenizer.encode("a") == [97]
    assert tokenizer.encode("a", add_special_tokens=True) == [256, 97]


def test_a_byte_level_decoder_inside_a_sequence_is_accepted():
    inner = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    decoder = {"type": "Sequence", "decoders": [inner]}
    assert Tokenizer.from_json(edited_json(decoder=decoder), where="test").encode("a") == [97]


def test_a_model_folder_is_read(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    assert Tokenizer.open(tmp_path).encode("ab") == [97, 98]


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json; copy it"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tokenizer_json().encode()[:-40], "truncated"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{}", "only ByteLevel BPE"),
        (edited_json(decoder={"type": "Metaspace"}).encode(), "Metaspace"),
        (edited_json(decoder=None).encode(), "only ByteLevel BPE"),
        (edited_json(model={"type": "Nonsense"}).encode(), "not a readable tokenizer"),
        (edited_json(model={"type": "BPE", "vocab": {"\u4e00": 0}, "merges": []}).encode(), "byte"),
    ],
    ids=range(8),
)
def test_an_unusable_file_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        Tokenizer.open(tmp_path)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unreadable_file_is_refused(tmp_path: Path):
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        Tokenizer.open(tmp_path)


def test_other_threads_run_while_a_long_text_is_encoded():
    # A thread that holds the GIL is asked to give it up after this long; never, in this test.
    interval_s = sys.getswitchinterval()
    is_going, has_run, is_encoding = Event(), Event(), Event()

    def other() -> None:
        is_going.set()
        is_encoding.wait()
        has_run.set()

    thread = Thread(target=other)
    thread.start()
    is_going.wait()
    sys.setswitchinterval(60.0)
    try:
        is_encoding.set()
        TOKENIZER.encode("a " * 200_000)
        was_run = has_run.is_set()
    finally:
        sys.setswitchinterval(interval_s)
        thread.join()
    assert was_run
