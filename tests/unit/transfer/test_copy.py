import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.transfer.copy import copy_fragments
from tests.support.transfer_world import fragments


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([0, 1, 16, 48, 64, 100])),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([1, 16, 64]),
    st.integers(0, 5),
)
def test_any_mix_of_sizes_and_alignments_lands_as_a_slow_loop_would_put_it(
    pieces: list[tuple[int, int]], align: int, skew: int
) -> None:
    source = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)
    came, want = np.zeros(12_000, np.uint8), np.zeros(12_000, np.uint8)
    at, triples = skew, []
    for gap, size in pieces:
        origin = gap * align + skew
        triples.append((origin, at, size))
        want[at : at + size] = source[origin : origin + size]
        at += -(-(size + gap) // align) * align
    copy_fragments(source, came, fragments(*triples))
    np.testing.assert_array_equal(came, want)


def test_many_equal_fragments_go_together_and_land_right() -> None:
    # 200 fragments of 256 bytes at multiples of 256: the indexed path, not one slice each.
    rng = np.random.default_rng(3)
    source = rng.integers(0, 256, 256 * 256, np.uint8)
    target = np.zeros_like(source)
    origin, home = rng.permutation(256)[:200], rng.permutation(256)[:200]
    copy_fragments(
        source,
        target,
        fragments(*((int(a) * 256, int(b) * 256, 256) for a, b in zip(origin, home, strict=True))),
    )
    np.testing.assert_array_equal(target.reshape(-1, 256)[home], source.reshape(-1, 256)[origin])
    assert np.count_nonzero(target.reshape(-1, 256).any(axis=1)) == 200


def test_bytes_past_the_last_whole_row_are_reached() -> None:
    source = np.arange(1, 101, dtype=np.uint8)
    target = np.zeros(103, np.uint8)
    copy_fragments(source, target, fragments(*((n * 10, n * 10 + 3, 10) for n in range(10))))
    np.testing.assert_array_equal(target[3:], source)
