import pytest

from headrace.kernels.attention import AttentionShape
from headrace.models.forward_batch import SequenceChunk, build_forward_batch

SHAPE = AttentionShape(num_kv_heads=2, queries_per_kv=2, head_dim=8, block_size=16)


def test_chunks_lie_side_by_side() -> None:
    batch = build_forward_batch(
        [
            SequenceChunk(token_ids=[7, 8, 9], start=15, block_ids=[4, 2]),
            SequenceChunk(token_ids=[5], start=0, block_ids=[3], wants_logits=True),
            SequenceChunk(token_ids=[1, 2], start=32, block_ids=[9, 0, 6], wants_logits=True),
        ],
        SHAPE,
    )
    assert batch.num_tokens == 6
    assert batch.token_ids_T.tolist() == [7, 8, 9, 5, 1, 2]
    assert batch.positions_T.tolist() == [15, 16, 17, 0, 32, 33]
    assert batch.slots_T.tolist() == [4 * 16 + 15, 2 * 16, 2 * 16 + 1, 3 * 16, 6 * 16, 6 * 16 + 1]
    assert batch.block_tables_BP.tolist() == [[4, 2, 0], [3, 0, 0], [9, 0, 6]]
    assert (batch.query_starts, batch.query_lens) == ((0, 3, 4), (3, 1, 2))
    assert batch.kv_lens == (18, 1, 34)
    assert batch.logit_rows_L.tolist() == [3, 5]


def test_an_idle_rank_has_an_empty_batch() -> None:
    batch = build_forward_batch([], SHAPE)
    assert batch.num_tokens == 0
    assert batch.block_tables_BP.shape == (0, 0)
    assert batch.logit_rows_L.tolist() == []


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (SequenceChunk(token_ids=[], start=3, block_ids=[1]), "0 tokens at position 3"),
        (SequenceChunk(token_ids=[1], start=-1, block_ids=[1]), "position -1"),
        (SequenceChunk(token_ids=[1], start=16, block_ids=[1]), "1 blocks of 16 slots for 17"),
    ],
)
def test_chunks_that_cannot_be_are_refused(chunk: SequenceChunk, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_forward_batch([chunk], SHAPE)


def test_a_block_may_be_exactly_full() -> None:
    chunk = SequenceChunk(token_ids=[1], start=15, block_ids=[2])
    assert build_forward_batch([chunk], SHAPE).slots_T.tolist() == [47]
