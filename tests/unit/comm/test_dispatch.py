"""The expert exchanges: bit-equal to one rank for any routing, any rank count, any split."""

import pytest
import torch

from headrace.comm.dispatch import AllToAllExchange, ReplicatedExchange
from tests.support.comm_experts import (
    HIDDEN,
    NUM_EXPERTS,
    Routed,
    canonical,
    local_experts,
    routed,
    sent_to,
)
from tests.support.comm_ranks import run_ranks, run_threads

DTYPES = [torch.float32, torch.bfloat16]


def replicated(group, tokens, width_ranks=1):
    exchange = ReplicatedExchange(group, num_experts=NUM_EXPERTS, width_ranks=width_ranks)
    experts = local_experts(group.rank, group.size, width_ranks=width_ranks)
    return exchange.run(tokens.x, tokens.ids, tokens.weights, experts)


def all_to_all(group, tokens, bounds):
    """Rank r holds tokens ``bounds[r]`` up to ``bounds[r + 1]``."""
    mine = tokens.rows(bounds[group.rank], bounds[group.rank + 1])
    exchange = AllToAllExchange(group, num_experts=NUM_EXPERTS)
    return exchange.run(mine.x, mine.ids, mine.weights, local_experts(group.rank, group.size))


def run_both(group, tokens, bounds):
    return replicated(group, tokens).tolist(), all_to_all(group, tokens, bounds).tolist()


def routings(dtype):
    """Name and tokens of each routing that could go wrong."""
    tokens = routed(9, dtype=dtype, seed=3)
    return {
        "random": tokens,
        "top-1": routed(9, dtype=dtype, seed=4, num_topk=1),
        "all to the first rank": sent_to(tokens, [0, 1, 3]),
        "all to the last expert": sent_to(tokens, [NUM_EXPERTS - 1]),
        "one expert of every eighth": sent_to(tokens, [30, 2, 20, 10]),
        "padding choices": Routed(
            tokens.x, tokens.ids.where(tokens.ids % 3 > 0, -1), tokens.weights
        ),
        "padding rows": sent_to(tokens, [-1]),
        "one token": tokens.rows(0, 1),
        "no token": tokens.rows(0, 0),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_replicated_exchange_equals_the_canonical_sum_bit_for_bit(size, dtype):
    for name, tokens in routings(dtype).items():
        for result in run_threads(size, replicated, tokens):
            assert torch.equal(result, canonical(tokens)), name


@pytest.mark.parametrize(("size", "width_ranks"), [(2, 2), (4, 2), (4, 4)])
def test_experts_split_by_width_give_the_same_bits(size, width_ranks):
    for name, tokens in routings(torch.bfloat16).items():
        for result in run_threads(size, replicated, tokens, width_ranks):
            assert torch.equal(result, canonical(tokens)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bounds", [[0, 9], [0, 4, 9], [0, 0, 9], [0, 3, 3, 8, 9], [0, 9, 9, 9, 9]])
def test_all_to_all_exchange_equals_the_canonical_sum_bit_for_bit(bounds, dtype):
    for name, tokens in routings(dtype).items():
        held = [min(bound, tokens.x.shape[0]) for bound in bounds]
        results = run_threads(len(bounds) - 1, all_to_all, tokens, held)
        assert torch.equal(torch.cat(results), canonical(tokens)), name


def test_processes_give_the_same_bits_as_threads(processes):
    tokens = routed(9, dtype=torch.bfloat16, seed=8)
    wanted = canonical(tokens)
    for size, bounds in ((2, [0, 2, 9]), (4, [0, 0, 4, 5, 9])):
        parts = []
        for whole, mine in run_ranks(processes, size, run_both, tokens, bounds):
            assert torch.equal(torch.tensor(whole), wanted)
            parts += mine
        assert torch.equal(torch.tensor(parts), wanted)


def test_a_rank_computes_only_rows_that_need_it():
    tokens = sent_to(routed(6, dtype=torch.float32, seed=1), [0, 31])
    elsewhere = sent_to(routed(6, dtype=torch.float32, seed=1), [1, 2])

    def rows_seen(group, exchange_type, given):
        seen = []

        def spy(x, ids, weights):
            seen.append(x.shape[0])
            return local_experts(group.rank, group.size)(x, ids, weights)

        exchange = exchange_type(group, num_experts=NUM_EXPERTS)
        exchange.run(given.x, given.ids, given.weights, spy)
        return seen

    assert run_threads(2, rows_seen, ReplicatedExchange, tokens) == [[6], [6]]
    assert run_threads(2, rows_seen, ReplicatedExchange, elsewhere) == [[6], [0]]
    assert run_threads(2, rows_seen, AllToAllExchange, elsewhere) == [[12], [0]]


def test_hidden_rows_travel_once_per_rank_and_in_the_models_dtype():
    tokens = sent_to(routed(5, dtype=torch.bfloat16, seed=1), [0, 1, 2])

    def bytes_sent(group):
        sent = []
        send = group.all_to_all
        group.all_to_all = lambda parts: sent.append([p.nbytes for p in parts]) or send(parts)
        all_to_all(group, tokens, [0, 5, 5])
        return sent

    dispatched, combined = run_threads(2, bytes_sent)[0]
    assert dispatched == [5 * (2 * HIDDEN + 3 * (4 + 4)), 0]
    assert combined == [5 * 4 * HIDDEN, 0]
