"""The figures follow the stated protocol."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tools.tiny import evaluate
from tools.tiny.network import Mtp, Target, TinyConfig

SMALL = TinyConfig(vocab_size=64, hidden_size=32, num_layers=2, num_experts=8, expert_width=16)


@pytest.fixture(scope="module")
def models() -> tuple[Target, Mtp]:
    torch.manual_seed(0)
    return Target(SMALL), Mtp(SMALL)


def documents(*lengths: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(64, size=n).astype(np.int16) for n in lengths]


def test_pieces_start_anew_and_single_tokens_are_left_out() -> None:
    pieces = evaluate.pieces_of(documents(9, 2, 1), 4)
    assert [len(piece) for piece in pieces] == [4, 4, 2]


def test_padding_and_batching_do_not_change_the_loss(models: tuple[Target, Mtp]) -> None:
    texts = documents(20, 7, 3)
    total = count = 0.0
    for ids in texts:
        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.inference_mode():
            logits = models[0].logits(models[0](tokens[:, :-1])[0])[0]
            total += F.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
        count += len(ids) - 1
    result = evaluate.score(*models, texts)
    assert result["predictions"] == count
    assert math.isclose(result["loss_nats_per_token"], total / count, abs_tol=1e-4)


def test_a_two_token_text_has_no_draft_to_accept(models: tuple[Target, Mtp]) -> None:
    assert evaluate.score(*models, documents(2))["mtp_acceptance"] == 0


def test_positions_and_shares_cover_what_they_should(models: tuple[Target, Mtp]) -> None:
    rows = np.stack(documents(17, 17))
    assert list(evaluate.loss_by_position(models[0], rows, (0, 4, 16))) == ["0-3", "4-15"]
    for layer in evaluate.expert_shares(models[0], documents(9, 5)):
        assert math.isclose(sum(layer), 1, abs_tol=1e-2)
