"""Bytes of routing equal those of its tensors."""

from headrace.kernels.costs.gate import route_bytes


def test_logits_are_read_and_four_tensors_written() -> None:
    logits, weights, ids, order, starts = 3 * 8 * 4, 3 * 2 * 4, 3 * 2 * 4, 6 * 4, 9 * 4
    expected = logits + weights + ids + order + starts
    assert route_bytes(3, num_experts=8, top_k=2, logit_bytes=4) == expected


def test_no_tokens_write_only_the_starts() -> None:
    assert route_bytes(0, num_experts=8, top_k=2) == 36
