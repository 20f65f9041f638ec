"""The loop learns, on the mixture and by the schedule that its configuration states."""

import numpy as np
import pytest
import torch

from tools.tiny import training
from tools.tiny.network import Mtp, Target, TinyConfig
from tools.tiny.training import AnswerMarks, PackedText, TrainingConfig

SMALL = TinyConfig(vocab_size=64, hidden_size=32, num_layers=1, num_experts=4, expert_width=16)
CONFIG = TrainingConfig(
    steps=20, long_steps=2, batch_tokens=32, row_tokens=8, long_row_tokens=16, book_passes=3.0,
    warmup_steps=4, log_every_steps=5, check_every_steps=10,
)  # fmt: skip


def test_book_rows_are_passed_over_as_often_as_asked() -> None:
    order = training.row_order(7, 5, CONFIG)
    counts = torch.bincount(order, minlength=12)
    assert len(order) == 20 * 4
    assert counts[7:].tolist() == [3] * 5
    assert counts[:7].max() - counts[:7].min() <= 1


def test_long_rows_come_last() -> None:
    text = PackedText(
        grammar=np.zeros((6, 9), np.int16),
        books=np.ones((2, 9), np.int16),
        long=np.full((3, 17), 2, np.int16),
    )
    shapes = [tuple(b.shape) for b in training.batches(text, CONFIG, torch.device("cpu"))]
    assert shapes == [(4, 9)] * 20 + [(2, 17)] * 2


@pytest.mark.parametrize(
    ("step", "elapsed_s", "rate"),
    [(0, 0.0, 0.25), (11, 0.0, 0.5), (11, 60 * CONFIG.max_minutes, 0.0), (22, 0.0, 0.0)],
)
def test_the_rate_ends_with_the_steps_or_the_time(step: int, elapsed_s: float, rate: float) -> None:
    assert training.rate_at(step, elapsed_s, CONFIG) == pytest.approx(rate * CONFIG.learning_rate)


def test_an_answer_without_a_thought_does_not_teach_its_first_token() -> None:
    row = torch.tensor([[1, 2, 7, 8, 1, 2, 5, 9]])
    marks = AnswerMarks(header=[1, 2], think=5)
    wanted = training.without_missing_thoughts(row[:, :-1], row[:, 1:], marks)
    assert wanted.tolist() == [[2, training.IGNORED, 8, 1, 2, 5, 9]]


def test_nothing_flows_from_the_mtp_loss_into_the_target() -> None:
    target, mtp = Target(SMALL), Mtp(SMALL)
    tokens = torch.randint(64, (2, 9))
    training.losses(target, mtp, tokens[:, :-1], wanted=tokens[:, 1:])[1].backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in mtp.parameters())


def test_the_loss_falls_and_checks_are_logged() -> None:
    torch.manual_seed(0)
    target, mtp = Target(SMALL), Mtp(SMALL)
    row = torch.arange(9)[None].repeat(4, 1)
    history = training.train(
        target,
        mtp,
        iter([row] * 22),
        config=CONFIG,
        marks=AnswerMarks(header=[63], think=62),
        check=lambda: {"grammar": 1.0},
    )
    assert history[-1]["text"] < 0.7 * history[0]["text"]
    assert [entry["step"] for entry in history if "grammar" in entry] == [10, 20, 21]
