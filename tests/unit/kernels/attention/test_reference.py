import pytest
import torch

from headrace.kernels.attention import plan
from tests.support.kernels_checks import DTYPES, assert_as_accurate, assert_bits_equal
from tests.support.kernels_paging import attend, library_attention, random_histories

# Length 1, around a block and around a tile, several tiles.
LENGTHS = (1, 15, 16, 17, 127, 128, 129, 300)


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_is_at_most_twice_the_librarys(dtype: torch.dtype) -> None:
    histories = random_histories(LENGTHS, dtype)
    outs = attend(histories, [(index, 0, length) for index, length in enumerate(LENGTHS)])
    for index, out in enumerate(outs):
        assert out.dtype == dtype
        assert_as_accurate(
            out,
            reference=library_attention(histories, index, torch.float64),
            library=library_attention(histories, index, dtype),
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [1, 16, 100])
def test_rows_do_not_depend_on_the_chunk(dtype: torch.dtype, chunk: int) -> None:
    histories = random_histories((290,), dtype)
    (whole,) = attend(histories, [(0, 0, 290)])
    starts = range(0, 290, chunk) if chunk > 1 else (0, 1, 127, 128, 129, 255, 256, 289)
    for start in starts:
        stop = min(start + chunk, 290)
        (part,) = attend(histories, [(0, start, stop)])
        assert_bits_equal(part, whole[start:stop])


@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_rows_do_not_depend_on_the_block_size(block_size: int) -> None:
    histories = random_histories(LENGTHS)
    queries = [(index, length // 2, length) for index, length in enumerate(LENGTHS)]
    for small, large in zip(
        attend(histories, queries),
        attend(histories, queries, block_size=block_size),
        strict=True,
    ):
        assert_bits_equal(large, small)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_the_other_sequences(dtype: torch.dtype) -> None:
    lengths = (3, 300, 128, 129, 40, 700)
    histories = random_histories(lengths, dtype)
    decodes = [(index, length - 1, length) for index, length in enumerate(lengths)]
    prompts = [(1, 100, 230), (5, 0, 300), (4, 0, 7)]
    mixed = decodes[:1] + prompts + decodes[2:4]
    for queries in (decodes, decodes[::-1], mixed):
        for query, out in zip(queries, attend(histories, queries), strict=True):
            assert_bits_equal(out, attend(histories, [query])[0])


@pytest.mark.parametrize("limit", [1, 1 << 14, 1 << 30])
def test_rows_do_not_depend_on_how_much_is_done_at_once(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories = random_histories(LENGTHS)
    queries = [(index, max(0, length - 20), length) for index, length in enumerate(LENGTHS)]
    expected = attend(histories, queries)
    monkeypatch.setattr(plan, "MAX_SPAN_ELEMENTS", limit)
    for out, same in zip(attend(histories, queries), expected, strict=True):
        assert_bits_equal(out, same)


def test_large_scores_do_not_overflow() -> None:
    histories = random_histories((200,))
    for q in histories.q:
        q *= 1e4
    (out,) = attend(histories, [(0, 0, 200)])
    assert_as_accurate(
        out,
        reference=library_attention(histories, 0, torch.float64),
        library=library_attention(histories, 0, torch.float32),
    )
