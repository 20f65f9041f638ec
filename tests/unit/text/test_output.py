"""The text a client sees depends on the tokens alone, and ends before the stop string."""

from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.output import OutputTextStream, TextDelta
from tests.support.text_tokenizers import byte_tokenizer

TOKENIZER = byte_tokenizer()
SPELLED = byte_tokenizer(added_tags=False)


def show(stream: OutputTextStream, token_ids: list[int]) -> tuple[str, bool]:
    """Push until the stream stops; return the joined text and whether it stopped."""
    shown = ""
    for token_id in token_ids:
        delta = stream.push(token_id)
        shown += delta.text
        if delta.is_stopped:
            return shown + stream.finish(), True
    return shown + stream.finish(), False


def test_text_and_offsets_follow_the_tokens():
    stream = OutputTextStream(TOKENIZER)
    deltas = [stream.push(byte) for byte in "a\u00e9b".encode()]
    assert deltas == [
        TextDelta("a", False, 0),
        TextDelta("", False, 1),
        TextDelta("\u00e9", False, 1),
        TextDelta("b", False, 2),
    ]


def test_offsets_count_text_that_is_still_held_back():
    stream = OutputTextStream(TOKENIZER, stop=["abc"])
    assert stream.push(ord("a")) == TextDelta("", False, 0)
    assert stream.push(ord("b")) == TextDelta("", False, 1)
    assert stream.push(ord("d")) == TextDelta("abd", False, 2)


@pytest.mark.parametrize(("include_stop", "expected"), [(False, "one "), (True, "one two")])
def test_stop_text_never_leaks(include_stop: bool, expected: str):
    stream = OutputTextStream(TOKENIZER, stop=["two"], include_stop=include_stop)
    assert show(stream, list(b"one two three")) == (expected, True)


def test_a_newline_before_other_text_is_kept_when_stop_begins_with_one():
    assert show(OutputTextStream(TOKENIZER, stop=["\nEND"]), list(b"a\nb")) == ("a\nb", False)


def test_text_held_for_a_stop_string_is_flushed_at_the_end():
    assert show(OutputTextStream(TOKENIZER, stop=["xyz"]), list(b"axy")) == ("axy", False)


def test_a_character_cut_by_the_limit_becomes_one_replacement_character():
    raw = "\uc0bc\U0001f467".encode()[:-1]
    assert show(OutputTextStream(TOKENIZER), list(raw)) == ("\uc0bc\ufffd", False)


def test_the_token_that_ended_the_sequence_is_counted_but_not_shown():
    stream = OutputTextStream(TOKENIZER, prompt_ids=TOKENIZER.encode("<think>\n"))
    assert stream.push(ord("a"), is_shown=False) == TextDelta("", False, 0)
    assert stream.num_reasoning_tokens == 1
    assert stream.finish() == ""


@pytest.mark.parametrize("tokenizer", [TOKENIZER, SPELLED], ids=["tags are tokens", "tags spelled"])
def test_reasoning_tokens_end_with_the_closing_tag(tokenizer):
    token_ids = tokenizer.encode("<think>a b</think>c")
    stream = OutputTextStream(tokenizer)
    assert show(stream, token_ids) == ("<think>a b</think>c", False)
    assert stream.num_reasoning_tokens == len(token_ids) - 1


@pytest.mark.parametrize("tokenizer", [TOKENIZER, SPELLED], ids=["tags are tokens", "tags spelled"])
def test_a_first_token_that_closes_the_prompts_reasoning_is_counted(tokenizer):
    prompt_ids = tokenizer.encode("<|im_start|>assistant\n<think>\n")
    closing = tokenizer.encode("</think>")
    stream = OutputTextStream(tokenizer, prompt_ids=prompt_ids)
    show(stream, closing + tokenizer.encode("c"))
    assert stream.num_reasoning_tokens == len(closing)


def test_reasoning_that_the_template_closed_itself_is_not_counted():
    prompt_ids = TOKENIZER.encode("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    stream = OutputTextStream(TOKENIZER, prompt_ids=prompt_ids)
    show(stream, TOKENIZER.encode("the answer"))
    assert stream.num_reasoning_tokens == 0


tokens = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=24)
stops = st.lists(st.sampled_from(["a", "\x00\x00", "<think>", "\ufffd"]), max_size=2)


@given(first=tokens, second=tokens, stop=stops)
def test_streams_in_one_batch_do_not_disturb_each_other(first, second, stop):
    """So a preempted sequence may keep its stream, and a fresh one given its tokens equals it."""
    alone = [[], []]
    for deltas, token_ids in zip(alone, (first, second), strict=True):
        stream = OutputTextStream(TOKENIZER, stop=stop)
        deltas.extend(stream.push(token_id) for token_id in token_ids)
        deltas.append((stream.finish(), stream.num_reasoning_tokens))
    together = [[], []]
    streams = [OutputTextStream(TOKENIZER, stop=stop) for _ in range(2)]
    for pair in zip_longest(first, second):
        for stream, deltas, token_id in zip(streams, together, pair, strict=True):
            if token_id is not None:
                deltas.append(stream.push(token_id))
    for stream, deltas in zip(streams, together, strict=True):
        deltas.append((stream.finish(), stream.num_reasoning_tokens))
    assert together == alone


@given(token_ids=tokens)
def test_without_stop_strings_the_joined_text_is_the_tokens_decoded_at_once(token_ids):
    assert show(OutputTextStream(TOKENIZER), token_ids) == (TOKENIZER.decode(token_ids), False)
