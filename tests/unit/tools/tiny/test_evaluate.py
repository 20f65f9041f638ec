"""Held-out figures follow the stated protocol; the examples are computed by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.support.tiny_trainer import NEXT, SIZES, LaggingMtp, TableTarget, networks, tokens
from tools.tiny import evaluate


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int16)


def documents(*lengths: int) -> list[np.ndarray]:
    return [tokens(n, seed=n).numpy().astype(np.int16) for n in lengths]


def test_a_document_is_cut_into_windows_and_a_lone_last_token_is_left_out() -> None:
    pieces = evaluate.pieces_of([ids(0, 1, 2, 3, 4), ids(5, 6, 7, 8), ids(9)], 4)
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3], [5, 6, 7, 8]]


def test_two_documents_are_scored_as_by_hand() -> None:
    # Pieces: (0 2 1 1), (3) which predicts nothing, and (2 3).
    # Bits: 0>2 two, 2>1 one, 1>1 three, 2>3 two; the likeliest next token came once, in 2>1.
    # Drafts: at 0 it is 1, as the target chooses after 2, and as the text has; at 2 it is 1,
    # where the target would choose 3 but the text has 1.
    score = evaluate.score(
        TableTarget(torch.tensor(NEXT)),
        LaggingMtp(),
        [ids(0, 2, 1, 1, 3), ids(2, 3)],
        window=4,
    )
    assert score == {
        "documents": 2,
        "predictions": 4,
        "loss_nats_per_token": round(2 * math.log(2), 5),
        "greedy_hit": 0.25,
        "mtp_acceptance": 0.5,
        "mtp_text_hit": 1.0,
    }


def test_every_prediction_weighs_the_same_whatever_the_batch() -> None:
    target, mtp = networks()
    texts = documents(*range(2, 40))
    together = evaluate.score(target, mtp, texts, window=16)
    alone = [evaluate.score(target, mtp, [text], window=16) for text in texts]
    total = sum(score["predictions"] for score in alone)
    assert together["predictions"] == total
    for key in ("loss_nats_per_token", "greedy_hit"):
        mean = sum(score[key] * score["predictions"] for score in alone) / total
        assert together[key] == pytest.approx(mean, abs=1e-4)


def test_positions_restart_with_every_window() -> None:
    target, mtp = networks()
    (text,) = documents(24)
    halves = [text[:12], text[12:]]
    whole, cut = (evaluate.score(target, mtp, d, window=12) for d in ([text], halves))
    assert whole | {"documents": 2} == cut


def test_losses_are_told_apart_by_position() -> None:
    target = TableTarget(torch.tensor(NEXT))
    rows = np.stack([ids(0, 2, 1, 3), ids(0, 1, 3, 0)])
    spans = evaluate.loss_by_position(target, rows, (0, 1, 3))
    # Bits: two and one at position 0; one, one, one and one at positions 1 and 2.
    assert spans == {"0-0": round(1.5 * math.log(2), 4), "1-2": round(math.log(2), 4)}


def test_selections_are_counted_per_layer_and_padding_is_not() -> None:
    target, _ = networks()
    short, long = documents(5, 19)
    shares = [np.array(evaluate.expert_shares(target, d)) for d in ([short], [long], [short, long])]
    assert shares[2].shape == (SIZES.num_layers, SIZES.num_experts)
    np.testing.assert_allclose(shares[2].sum(-1), 1, atol=1e-3)
    np.testing.assert_allclose(shares[2], (5 * shares[0] + 19 * shares[1]) / 24, atol=2e-4)


def test_experts_that_are_always_selected_have_even_shares() -> None:
    target, _ = networks(dataclasses.replace(SIZES, num_experts=4, experts_per_token=4))
    assert evaluate.expert_shares(target, documents(6)) == [[0.25] * 4] * SIZES.num_layers
