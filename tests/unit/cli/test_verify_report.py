"""The report names what was planted, and its verdict follows the mode's rule."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from headrace.cli.verify_compare import Run
from headrace.cli.verify_report import Report, compare_results
from headrace.core.requests import Ledger
from tests.support.verify_runs import (
    NUM_PROMPT_TOKENS,
    run,
    with_flipped_bit,
    with_kv,
    with_logits,
    with_token,
)

PROMPT = "Once upon a time"


def report(got: Run, *, is_exact: bool = True, is_disaggregated: bool = True) -> Report:
    return Report(
        model="tiny",
        deployment="prefill tp=2 + decode dp=2",
        dtype="float32",
        is_exact=is_exact,
        is_disaggregated=is_disaggregated,
        block_size=16,
        results=compare_results(
            [(PROMPT, NUM_PROMPT_TOKENS, "greedy")],
            expected=[run()],
            got=[got],
            is_disaggregated=is_disaggregated,
        ),
    )


def show(token_id: int | None) -> str:
    return f"<{token_id}>"


def test_equal_runs_pass_and_the_verdict_counts_what_crossed() -> None:
    good = report(run())
    assert good.is_equal
    assert good.findings(show) == []
    assert good.verdict().startswith("EQUAL: 1 requests, 4 output tokens, logits and KV bit-equal")
    assert "KV of 39 prompt tokens crossed in 2,496 bytes" in good.verdict()


@pytest.mark.parametrize(
    ("got", "finding"),
    [
        (with_token(run(), 2, 4), "first different token at output 2: mono <7>, deployment <4>"),
        (with_flipped_bit(run(), 1, 6), "logits differ from output 1 on"),
        (
            with_kv(run(), 1, 2),
            "KV differs first in layer 1, tokens 32-47 (block 2 of the sequence), seen at output 0",
        ),
        (
            replace(run(), ledger=Ledger(computed_tokens=NUM_PROMPT_TOKENS)),
            "40 prompt tokens were computed by the decode rank",
        ),
    ],
    ids=["token", "bit", "kv", "not-apart"],
)
def test_every_planted_fault_is_named(got: Run, finding: str) -> None:
    bad = report(got)
    assert not bad.is_equal
    assert bad.findings(show)[0].startswith(f'"{PROMPT}" greedy: ')
    assert finding in bad.findings(show)[0]
    assert bad.verdict() == "DIFFERENT: 1 of 1 requests, see above"


def test_the_block_is_counted_in_the_decode_ranks_size() -> None:
    bad = msgspec.structs.replace(report(with_kv(run(), 0, 2)), block_size=32)
    assert "tokens 32-47 (block 1 of the sequence)" in bad.findings(show)[0]


def test_a_run_without_any_transfer_shows_nothing() -> None:
    cached = replace(run(), ledger=Ledger(cached_tokens=39, computed_tokens=1))
    assert report(cached).results[0].faults == []
    assert not report(cached).is_equal
    assert report(cached).findings(show)[0].startswith("no KV crossed")
    assert report(cached).verdict().startswith("NOT SHOWN")


def test_a_mono_deployment_is_not_asked_for_a_transfer() -> None:
    local = replace(run(), ledger=Ledger(computed_tokens=NUM_PROMPT_TOKENS))
    good = report(local, is_disaggregated=False)
    assert good.is_equal
    assert good.verdict().endswith("no prefill replica: nothing crossed")


def test_without_exact_sums_rounding_passes_and_the_verdict_says_what_was_asked() -> None:
    rounded = with_kv(with_flipped_bit(run(), 1, 6), 1, 2)
    assert not report(rounded).is_equal
    good = report(rounded, is_exact=False)
    assert good.is_equal
    assert "all tokens equal, logits within" in good.verdict()
    assert "exact sums are off" in good.verdict()


def test_without_exact_sums_other_tokens_need_close_logits() -> None:
    near = with_token(with_flipped_bit(run(), 2, 6), 2, 4)
    far = with_token(with_logits(run(), 2, {0: 99.0}), 2, 4)
    assert report(near, is_exact=False).is_equal
    assert "tokens differ in 1 requests" in report(near, is_exact=False).verdict()
    assert not report(far, is_exact=False).is_equal


def test_the_table_has_a_row_per_request_and_marks_a_fault() -> None:
    bad = report(replace(with_token(run(), 2, 4), ledger=Ledger(computed_tokens=40)))
    console = Console(width=80, markup=False)
    with console.capture() as capture:
        console.print(bad.table())
    head, row = capture.get().splitlines()
    assert head.split() == ["prompt", "in", "out", "setting", "tokens", "logits", "KV", "received"]
    assert "differ at 2" in row
    assert "(!) 0 B" in row


def test_json_holds_the_verdict_and_every_comparison() -> None:
    data = report(with_kv(run(), 1, 2)).to_data(show)
    assert msgspec.json.decode(msgspec.json.encode(data)) == data
    assert data["is_equal"] is False
    assert data["findings"]
    assert data["results"][0]["comparison"]["kv"] == {"position": 0, "layer": 1, "run": 2}
