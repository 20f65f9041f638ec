from collections import Counter

import pytest

from headrace.core.layouts import KV_TILE_TOKENS
from headrace.kernels.attention import AttentionShape, QueryRun, plan, plan_attention

SHAPE = AttentionShape(num_kv_heads=2, queries_per_kv=3, head_dim=16, block_size=32)


def runs_of(*spans: tuple[int, int]) -> list[QueryRun]:
    runs, row = [], 0
    for index, (start, num_tokens) in enumerate(spans):
        blocks = range(100 * index, 100 * index + -(-(start + num_tokens) // SHAPE.block_size))
        runs.append(
            QueryRun(first_row=row, num_tokens=num_tokens, start=start, block_ids=list(blocks))
        )
        row += num_tokens
    return runs


MIXED = runs_of((0, 1), (500, 1), (127, 1), (0, 300), (128, 1), (64, 300), (5, 7))


@pytest.mark.parametrize("limit", [1, 1 << 16, 1 << 30])
def test_every_row_is_in_exactly_one_piece(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_SPAN_ELEMENTS", limit)
    rows = Counter(
        row for piece in plan_attention(MIXED, SHAPE).pieces for row in piece.batch_rows.tolist()
    )
    assert rows == dict.fromkeys(range(sum(run.num_tokens for run in MIXED)), 1)


@pytest.mark.parametrize("limit", [1, 1 << 16, 1 << 30])
def test_spans_cover_each_runs_tiles_once_in_order(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_SPAN_ELEMENTS", limit)
    for piece in plan_attention(runs_of((500, 1), (0, 1), (130, 1), (127, 1)), SHAPE).pieces:
        counts = [span.num_runs for span in piece.spans]
        assert counts[0] == piece.num_runs
        assert counts == sorted(counts, reverse=True)
        for span in piece.spans:
            per_tile = KV_TILE_TOKENS // SHAPE.block_size
            assert len(span.block_ids) == span.num_runs * span.num_tiles * per_tile


def test_wholly_visible_tiles_need_no_mask() -> None:
    (piece,) = plan_attention(runs_of((512, 1)), SHAPE).pieces
    whole, last = piece.spans
    assert (whole.num_tiles, whole.hidden_ALMK) == (4, None)
    assert last.num_tiles == 1
    assert last.hidden_ALMK[0, 0, 0].tolist() == [False] + [True] * 127
    assert last.unwritten.tolist() == list(range(1, 128))


def test_masks_are_causal_and_padding_rows_see_something() -> None:
    (piece,) = plan_attention(runs_of((2, 5)), SHAPE).pieces
    (span,) = piece.spans
    visible = (~span.hidden_ALMK[0, 0]).sum(1).tolist()
    # Three query heads a token, and one row to fill up to sixteen.
    assert visible == [3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 7]


def test_blocks_beyond_a_sequences_own_are_never_read() -> None:
    for piece in plan_attention(MIXED, SHAPE).pieces:
        for span in piece.spans:
            per_run = span.block_ids.view(span.num_runs, -1)
            for ids in per_run.tolist():
                owners = {block // 100 for block in ids if block}
                assert len(owners) <= 1


def test_an_empty_batch_has_no_pieces() -> None:
    assert plan_attention([], SHAPE).pieces == ()
