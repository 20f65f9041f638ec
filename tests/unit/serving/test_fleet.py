"""The names by which calls find out whether their rank still lives."""

from headrace.serving.fleet import live_ranks
from tests.support.serving_fakes import topology


def test_a_restarted_rank_is_not_the_rank_it_was() -> None:
    before = live_ranks(topology(prefill_ranks=1, decode_ranks=1, generation=1))
    after = live_ranks(topology(prefill_ranks=1, decode_ranks=1, generation=2))
    assert before == {("prefill0", 0, 1), ("decode0", 0, 1)}
    assert not before & after
