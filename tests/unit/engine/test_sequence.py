"""A sequence's derived numbers have one definition."""

from __future__ import annotations

import pytest

from headrace.core.messages import Submit
from headrace.core.requests import SamplingParams
from headrace.engine.sequence import make_sequences
from headrace.kvcache.block_table import BlockTable
from headrace.kvcache.pool import BlockPool
from headrace.text.output import OutputTextStream
from tests.support.text_tokenizers import byte_tokenizer


def make(num_choices: int, **params: object) -> list:
    submit = Submit(
        request_id="r",
        reply_to="edge",
        prompt_ids=list(range(20)),
        params=SamplingParams(max_tokens=4, **params),
        num_choices=num_choices,
    )
    return make_sequences(
        submit,
        first_order=7,
        now_s=1.0,
        vocab_size=300,
        open_text=lambda: OutputTextStream(byte_tokenizer()),
    )


def test_choices_have_their_own_place_text_and_noise() -> None:
    sequences = make(3, seed=11)
    assert [one.order for one in sequences] == [7, 8, 9]
    assert sequences[0].seed == 11
    assert len({one.seed for one in sequences}) == 3
    assert len({id(one.token_ids) for one in sequences}) == 3


def test_counts_are_kept_only_for_penalties() -> None:
    assert make(1)[0].counts is None
    counted = make(1, repetition_penalty=1.2)[0].counts
    assert counted is not None
    assert counted.prompt_V.sum() == 20


def test_missing_tokens_stop_short_of_the_last_one() -> None:
    (sequence,) = make(1)
    pool = BlockPool(4, 16)
    with pytest.raises(AssertionError, match="holds no blocks"):
        _ = sequence.blocks
    sequence.table = BlockTable.open(pool, pool.match(sequence.token_ids), 20)
    assert sequence.num_missing_tokens == 19
    sequence.blocks.advance(19)
    assert sequence.num_missing_tokens == 0
    sequence.token_ids += [5, 6]
    assert sequence.num_output_tokens == 2
    assert sequence.num_prompt_tokens == 20
