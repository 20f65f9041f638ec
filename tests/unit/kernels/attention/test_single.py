import pytest
import torch

from headrace.kernels.attention import single
from tests.support.kernels_checks import DTYPES, assert_as_accurate
from tests.support.kernels_paging import attend, library_attention, random_histories

LENGTHS = (1, 15, 16, 17, 30, 127, 128, 129, 300)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("limit", [1, 1 << 14, 1 << 19])
@pytest.mark.parametrize("lengths", [LENGTHS, (300,), (40, 40, 40)])
def test_error_is_at_most_twice_the_librarys(
    dtype: torch.dtype, limit: int, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "MAX_GROUP_ELEMENTS", limit)
    histories = random_histories(lengths, dtype)
    queries = [(index, length - 1, length) for index, length in enumerate(lengths)]
    for index, out in enumerate(attend(histories, queries, exact=False)):
        assert out.dtype == dtype
        assert_as_accurate(
            out[0],
            reference=library_attention(histories, index, torch.float64)[-1],
            library=library_attention(histories, index, dtype)[-1],
        )


def test_single_queries_and_prompts_may_share_a_batch() -> None:
    histories = random_histories((300, 40, 41))
    queries = [(0, 299, 300), (1, 3, 40), (2, 40, 41)]
    exact = attend(histories, queries)
    for ours, expected in zip(attend(histories, queries, exact=False), exact, strict=True):
        torch.testing.assert_close(ours, expected)


def test_sequences_with_equally_many_blocks_are_gathered_together() -> None:
    queries = [
        single.Query(row=row, num_tokens=length, block_ids=[3 * row, 3 * row + 1, 3 * row + 2])
        for row, length in enumerate((17, 5, 32, 40))
    ]
    groups = single.plan_groups(queries, block_size=16, elements_per_token=64, num_rows=4)
    assert [group.rows_B.tolist() for group in groups] == [[1], [0, 2], [3]]
    assert [group.block_ids.tolist() for group in groups] == [[3], [0, 1, 6, 7], [9, 10, 11]]
    assert [group.num_tokens for group in groups] == [5, 32, 40]
    assert groups[1].unwritten.tolist() == list(range(17, 32))
    assert groups[0].hidden_B1L is None
    whole = single.plan_groups(queries[:1], block_size=16, elements_per_token=64, num_rows=1)
    assert whole[0].rows_B is None
