"""Costs of device sampling."""

from headrace.kernels.costs.sampling import device_sample_bytes, device_sample_operations


def test_penalties_read_two_bytes_per_logit() -> None:
    plain = device_sample_bytes(4, vocab_size=100, logit_bytes=2)
    assert plain == 800
    assert device_sample_bytes(4, vocab_size=100, logit_bytes=2, num_penalised=3) == plain + 600


def test_noise_is_paid_by_the_rows_that_race_their_vocabulary() -> None:
    greedy = device_sample_operations(8, vocab_size=100)
    assert device_sample_operations(8, vocab_size=100, num_plain=8) > 10 * greedy
    assert device_sample_operations(0, vocab_size=100) == 0
