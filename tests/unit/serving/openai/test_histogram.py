"""Counts by upper edge."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.openai.histogram import DURATION_BUCKETS_S, Histogram


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5))))
def test_every_value_is_counted_at_or_below_its_edge(values: list[tuple[float, int]]) -> None:
    histogram = Histogram()
    for value, times in values:
        histogram.observe(value, times=times)
    buckets = dict(histogram.cumulative())
    for edge in DURATION_BUCKETS_S:
        assert buckets[str(edge)] == sum(times for value, times in values if value <= edge)
    assert buckets["+Inf"] == histogram.count == sum(times for _, times in values)
    assert abs(histogram.total - sum(value * times for value, times in values)) < 1e-6
