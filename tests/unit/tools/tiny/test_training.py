"""The training loop learns, keeps its schedule and repeats itself bit for bit."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.tiny_trainer import NEXT, SIZES, TableTarget, networks, tokens
from tools.tiny import training
from tools.tiny.network import Mtp, Target
from tools.tiny.training import IGNORED, AnswerMarks, PackedText, TrainingConfig

CONFIG = TrainingConfig(
    steps=15,
    long_steps=1,
    max_minutes=1e6,  # the schedule follows the steps alone
    batch_tokens=64,
    row_tokens=16,
    long_row_tokens=32,
    book_passes=2.0,
    learning_rate=1e-2,
    warmup_steps=4,
    log_every_steps=5,
    check_every_steps=10,
)
HEADER, THINK = (9, 8, 7), 5
MARKS = AnswerMarks(header=HEADER, think=THINK)


def fresh_networks() -> tuple[Target, Mtp]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Target(SIZES), Mtp(SIZES)


def repeat_one_batch(config: TrainingConfig = CONFIG) -> Iterator[Tensor]:
    rows = tokens(4, config.row_tokens + 1)
    return itertools.repeat(rows, config.steps + config.long_steps)


def run(target: Target, mtp: Mtp, config: TrainingConfig = CONFIG) -> list[dict[str, float]]:
    return training.train(
        target,
        mtp,
        repeat_one_batch(config),
        config=config,
        marks=MARKS,
        check=lambda: {"held": 1.0},
    )


def packed(grammar: int, books: int, long: int) -> PackedText:
    """Rows that carry their own number; the books' go on where the grammar's end."""
    numbers = [range(grammar), range(grammar, grammar + books), range(long)]
    lengths = (CONFIG.row_tokens + 1, CONFIG.row_tokens + 1, CONFIG.long_row_tokens + 1)
    rows = [
        np.array(list(n), dtype=np.int16).reshape(-1, 1).repeat(length, axis=1)
        for n, length in zip(numbers, lengths, strict=True)
    ]
    return PackedText(grammar=rows[0], books=rows[1], long=rows[2])


def test_steps_on_one_batch_lower_both_losses() -> None:
    history = run(*fresh_networks())
    assert history[-1]["text"] < 0.7 * history[0]["text"]
    assert history[-1]["mtp"] < history[0]["mtp"]


def test_training_repeats_itself_bit_for_bit() -> None:
    first, second = fresh_networks(), fresh_networks()
    assert run(*first) == run(*second)
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_mtp_loss_asks_nothing_of_the_target() -> None:
    target, mtp = fresh_networks()
    _, loss, _ = training.losses(target, mtp, tokens(2, 8), wanted=tokens(2, 8, seed=1))
    loss.backward()
    assert all(p.grad is None for p in target.parameters())
    assert all(p.grad is not None for p in mtp.parameters())


def test_steps_are_logged_as_configured_and_checked_at_the_end() -> None:
    history = run(*fresh_networks())
    assert [entry["step"] for entry in history] == [0, 5, 10, 15]
    assert [entry["step"] for entry in history if "held" in entry] == [10, 15]


def test_out_of_time_means_a_finished_schedule_and_no_further_step() -> None:
    history = run(*fresh_networks(), dataclasses.replace(CONFIG, max_minutes=1e-9))
    assert [entry["step"] for entry in history] == [0]
    assert history[0]["rate"] == 0.0


def test_the_text_loss_is_the_mean_over_what_is_wanted() -> None:
    target, mtp = networks()
    inputs, wanted = tokens(2, 6), tokens(2, 6, seed=1)
    wanted[0, :3] = IGNORED
    text, _, _ = training.losses(target, mtp, inputs, wanted=wanted)
    logits = target.logits(target(inputs)[0]).log_softmax(-1)
    nats = [-logits[b, t, wanted[b, t]].item() for b in range(2) for t in range(6) if b or t > 2]
    assert text.item() == pytest.approx(sum(nats) / 9, rel=1e-5)


def test_the_mtp_loss_is_the_cross_entropy_to_what_the_target_expects_next() -> None:
    class Knowing(torch.nn.Module):
        """States from which the table's own logits follow: a perfect draft."""

        def forward(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
            logarithms = torch.tensor(NEXT).log()
            return embedding @ logarithms, torch.zeros(())

    target = TableTarget(torch.tensor(NEXT))
    inputs = torch.tensor([[0, 2, 1]])
    _, loss, _ = training.losses(target, Knowing(), inputs, wanted=inputs)
    # Every row of the table has the entropy 1/2 * 1 + 1/4 * 2 + 2 * 1/8 * 3 = 1.75 bits.
    assert loss.item() == pytest.approx(1.75 * math.log(2))


def test_only_the_first_token_of_an_answer_without_a_thought_is_not_wanted() -> None:
    text = torch.tensor([[1, *HEADER, 3, 4, *HEADER, THINK, 4, 8, 7, 3]])
    inputs, wanted = text[:, :-1], text[:, 1:]
    left = training.without_missing_thoughts(inputs, wanted, MARKS)
    expected = wanted.clone()
    expected[0, 3] = IGNORED  # the 3 that follows the first header
    assert left.tolist() == expected.tolist()


def test_every_row_comes_once_before_any_comes_again() -> None:
    order = training.cycle(5, 13)
    assert len(order) == 13
    for first in (0, 5):
        assert sorted(order[first : first + 5].tolist()) == [0, 1, 2, 3, 4]
    assert len(set(order[10:].tolist())) == 3


def test_books_are_passed_over_as_often_as_configured_and_the_grammar_fills_the_rest() -> None:
    order = training.row_order(10, 7, CONFIG)
    counts = torch.bincount(order, minlength=17)
    assert counts.sum() == CONFIG.steps * 4
    assert counts[10:].tolist() == [2] * 7
    assert counts[:10].max() - counts[:10].min() <= 1


def test_many_books_take_at_most_half_of_the_steps() -> None:
    order = training.row_order(10, 1000, CONFIG)
    assert (order >= 10).sum() == CONFIG.steps * 2


def test_without_books_every_row_is_grammar() -> None:
    assert training.row_order(10, 0, CONFIG).max() == 9


def test_short_rows_come_first_and_the_long_stage_last() -> None:
    steps = list(training.batches(packed(10, 7, 3), CONFIG, torch.device("cpu")))
    assert [tuple(rows.shape) for rows in steps] == [(4, 17)] * CONFIG.steps + [(2, 33)]
    assert {rows.dtype for rows in steps} == {torch.int64}
    seen = torch.cat([rows[:, 0] for rows in steps[:-1]])
    assert set(seen.tolist()) == set(range(17))


def test_the_rate_warms_up_and_ends_at_zero() -> None:
    rates = [training.rate_at(step, 0.0, CONFIG) for step in range(17)]
    assert rates[0] == pytest.approx(CONFIG.learning_rate / 4)
    assert max(rates) == rates[3] > 0.9 * CONFIG.learning_rate
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[16] == pytest.approx(0.0, abs=1e-12)


def test_a_slow_machine_is_as_far_as_its_clock() -> None:
    config = dataclasses.replace(CONFIG, max_minutes=2.0)
    assert training.rate_at(5, 60.0, config) == pytest.approx(config.learning_rate / 2)
    assert training.rate_at(5, 500.0, config) == 0.0


def test_only_matrices_decay() -> None:
    target, mtp = networks()
    decayed, kept = training.make_optimizer([target, mtp], CONFIG).param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (CONFIG.weight_decay, 0.0)
    norms = {id(p) for m in (target, mtp) for n, p in m.named_parameters() if "norm" in n}
    assert {id(p) for p in kept["params"]} == norms
    everything = {id(p) for m in (target, mtp) for p in m.parameters()}
    assert {id(p) for p in decayed["params"]} == everything - norms


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("warmup_steps", 0, "warmup_steps must be more than 0, got 0"),
        ("weight_decay", -0.1, "weight_decay must be 0 or more, got -0.1"),
        ("batch_tokens", 31, "batch_tokens must hold the longest row, 32 tokens, got 31"),
    ],
    ids=["zero", "negative", "small batch"],
)
def test_a_recipe_without_steps_is_refused(setting: str, value: float, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        dataclasses.replace(CONFIG, **{setting: value})
