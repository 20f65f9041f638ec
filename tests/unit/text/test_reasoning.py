"""Reasoning is counted in tokens, tags included, however the tags are cut into tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.reasoning import ReasoningCounter, opens_reasoning


def count(pieces: list[bytes], *, is_open: bool = False) -> int:
    counter = ReasoningCounter(is_open=is_open)
    for piece in pieces:
        counter.push(piece)
    return counter.num_tokens


@pytest.mark.parametrize(
    ("pieces", "is_open", "num_tokens"),
    [
        ([b"<think>", b"a", b" b", b"</think>", b"c"], False, 4),
        ([b"a", b" b", b"</think>", b"c"], True, 3),
        ([b"</think>", b"c"], True, 1),  # the first token closes what the prompt opened
        ([b"</think>", b"c"], False, 0),
        ([b"c", b"<think>", b"a", b"</think>"], False, 0),  # not at the beginning
        ([b"\n", b"<think>", b"a"], False, 3),  # cut off by the limit
        ([b"<th", b"ink>a", b"</th", b"ink>", b"c"], False, 4),
        ([b"<th", b"at"], False, 0),
        ([b"<think>a</think>b", b"c"], False, 1),
        ([b"<think>", b"</think>", b"<think>", b"x"], False, 2),
        ([b"a<", b"b</", b"think", b">", b"c"], True, 4),
        ([], True, 0),
    ],
)
def test_reasoning_runs_from_the_opening_to_the_closing_tag(pieces, is_open, num_tokens):
    assert count(pieces, is_open=is_open) == num_tokens


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        (b"<|im_start|>assistant\n<think>\n", True),
        (b"<|im_start|>assistant\n<think>", True),
        (b"<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        (b"what does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
        (b"", False),
    ],
)
def test_only_a_tag_at_the_very_end_of_the_prompt_opens_reasoning(prompt, is_open):
    assert opens_reasoning(prompt) == is_open


@given(inner=st.binary(max_size=12), data=st.data())
def test_the_count_ends_with_the_token_that_completes_the_closing_tag(inner, data):
    raw = b"<think>" + inner.replace(b"<", b"") + b"</think>" + b"rest"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=8)))
    bounds = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    end = raw.index(b"</think>") + len(b"</think>")
    assert count(pieces) == sum(start < end for start in bounds[:-1])
