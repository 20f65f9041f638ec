"""Teacher forcing finds what a margin does not cover, and says where."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.cli.verify_compare import Run
from headrace.cli.verify_forced import ForcedReport, ForcedResult, judge, noise_margin
from headrace.core.requests import Ledger

GREEDY, SEEDED = ("what", 3, "greedy"), ("what", 3, "seeded")
NUM, VOCAB = 40, 11


def paths(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    exact = generator.normal(0, 3, (NUM, VOCAB))
    return exact, exact + generator.normal(0, 0.01, (NUM, VOCAB))


def engine_run(logits: np.ndarray, token_ids: list[int] | None = None) -> Run:
    rows = logits.astype(np.float32)
    tokens = rows.argmax(1).tolist() if token_ids is None else token_ids
    return Run(
        token_ids=tokens, logits=[row.tobytes() for row in rows], kv_digests=[], ledger=Ledger()
    )


def judged(run: Run, asked: tuple[str, int, str] = GREEDY) -> tuple[ForcedResult, ForcedReport]:
    exact, plain = paths()
    margin, room = noise_margin([exact], [plain])
    result = judge(asked, run, exact_LV=exact, plain_LV=plain, margin=margin)
    report = ForcedReport(
        model="m",
        deployment="d",
        device="cuda",
        dtype="bfloat16",
        margin=margin,
        room=room,
        results=[result],
    )
    return result, report


def noisy() -> np.ndarray:
    exact, _ = paths()
    return exact + np.random.default_rng(9).normal(0, 0.01, exact.shape)


def test_an_engine_as_noisy_as_plain_torch_passes() -> None:
    result, report = judged(engine_run(noisy()))
    assert report.is_equal
    assert result.position is None
    assert report.verdict().startswith("WITHIN THE NOISE: 40 output tokens of 1 requests")


@pytest.mark.parametrize("value", [1.0, np.nan, np.inf])
def test_one_wrong_logit_is_found_where_it_is(value: float) -> None:
    logits = noisy()
    logits[17, logits[17].argmin()] += value
    result, report = judged(engine_run(logits, paths()[0].argmax(1).tolist()))
    assert (report.is_equal, result.position) == (False, 17)
    assert f"the logit of token {logits[17].argmin() if value == 1.0 else ''}" in result.fault
    assert report.findings()[0] == f"'what' greedy: output 17: {result.fault}"
    assert report.verdict() == "DIFFERENT: 1 of 1 requests, see above"


def test_a_greedy_token_that_is_not_the_best_is_found_and_a_drawn_one_is_let_pass() -> None:
    tokens = noisy().argmax(1).tolist()
    tokens[5] = int(noisy()[5].argmin())
    result, _ = judged(engine_run(noisy(), tokens))
    assert result.position == 5
    assert "behind the reference's best" in result.fault
    assert judged(engine_run(noisy(), tokens), SEEDED)[1].is_equal


def test_a_token_at_a_tie_may_be_either() -> None:
    exact, plain = paths()
    margin, _ = noise_margin([exact], [plain])
    tokens, exact[3, :2] = exact.argmax(1).tolist(), (20.0, 20.0 - margin / 2)
    tokens[3] = 1
    result = judge(GREEDY, engine_run(exact, tokens), exact_LV=exact, plain_LV=exact, margin=margin)
    assert result.position is None
    assert result.max_behind == pytest.approx(margin / 2)


def test_many_small_errors_are_found_in_the_mean() -> None:
    exact, plain = paths()
    shift = 0.9 * noise_margin([exact], [plain])[0]
    result, report = judged(engine_run(exact + shift))
    assert result.position is None
    assert not report.is_equal
    assert "in the mean over 40 positions" in report.findings()[0]
    assert report.to_data()["verdict"] == "DIFFERENT: no single position, but see above"


def test_logits_of_another_model_are_refused() -> None:
    exact, plain = paths()
    with pytest.raises(ValueError, match="against"):
        judge(GREEDY, engine_run(exact[:, 1:]), exact_LV=exact, plain_LV=plain, margin=1.0)


def test_a_model_that_overflows_in_plain_torch_lets_nothing_pass() -> None:
    exact, plain = paths()
    plain[3, 3] = np.nan
    margin, _ = noise_margin([exact], [plain])
    result = judge(GREEDY, engine_run(exact), exact_LV=exact, plain_LV=plain, margin=margin)
    assert result.position == 0
