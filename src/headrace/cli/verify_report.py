"""What ``verify`` found, for people (a table, findings and a verdict) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import JustifyMethod
from rich.table import Table

from headrace.cli.verify_compare import (
    INEXACT_BOUNDS,
    RUN_TOKENS,
    Comparison,
    Run,
    compare_runs,
    disaggregation_faults,
)
from headrace.core.requests import Ledger

ShowToken = Callable[[int | None], str]


class Result(Struct, frozen=True, kw_only=True):
    """One request's part of a report.

    Attributes:
        prompt: Its text.
        num_prompt_tokens: Its length.
        setting: ``greedy`` or ``seeded``.
        comparison: Deployment against mono.
        ledger: Of the deployment's run.
        faults: What shows that it was not disaggregated as it should have been.
    """

    prompt: str
    num_prompt_tokens: int
    setting: str
    comparison: Comparison
    ledger: Ledger
    faults: list[str] = []


class Report(Struct, frozen=True, kw_only=True):
    """A whole verification.

    Attributes:
        model: Name of the model.
        deployment: Its shardings in one line.
        dtype: Of the model as it was run.
        is_exact: Canonical sums were on: the criterion is bit equality.
        is_disaggregated: The deployment has prefill replicas, so KV must have crossed.
        block_size: Of the decode ranks [tokens].
        results: One per request.
    """

    model: str
    deployment: str
    dtype: str
    is_exact: bool
    is_disaggregated: bool
    block_size: int
    results: list[Result]

    @property
    def bound(self) -> float:
        """Relative gap of logits that is let pass without exact sums."""
        return INEXACT_BOUNDS[self.dtype]

    @property
    def faults(self) -> list[str]:
        """What is wrong with the run as a whole."""
        if self.is_disaggregated and not self.num_transferred_tokens:
            return ["no KV crossed: every prompt is too short or was cached; give longer prompts"]
        return []

    @property
    def num_transferred_tokens(self) -> int:
        """Prompt tokens whose KV came from a prefiller."""
        return sum(result.ledger.transferred_tokens for result in self.results)

    @property
    def is_equal(self) -> bool:
        """Whether the deployment computes what mono computes, and was one."""
        return not self.faults and all(map(self.passes, self.results))

    def passes(self, result: Result) -> bool:
        """Whether one request passes."""
        if result.faults:
            return False
        if self.is_exact:
            return result.comparison.is_identical
        return result.comparison.is_within(self.bound)

    def findings(self, show: ShowToken) -> list[str]:
        """Return one line for each request that fails, then what is wrong as a whole.

        Args:
            show: Names a token.
        """
        lines = []
        for result in self.results:
            if not self.passes(result):
                parts = [*_gaps(result.comparison, self.block_size, show), *result.faults]
                lines.append(f"{_snippet(result.prompt, 40)} {result.setting}: {'; '.join(parts)}")
        return lines + self.faults

    def verdict(self) -> str:
        """Return one line."""
        failed = sum(not self.passes(result) for result in self.results)
        if failed:
            return f"DIFFERENT: {failed} of {len(self.results)} requests, see above"
        if self.faults:
            return "NOT SHOWN: the outputs are equal, but see above"
        return f"EQUAL: {self._equality()}; {self._crossing()}"

    def _equality(self) -> str:
        num_tokens = sum(result.comparison.num_compared for result in self.results)
        requests = f"{len(self.results)} requests, {num_tokens} output tokens"
        if all(result.comparison.is_identical for result in self.results):
            return f"{requests}, logits and KV bit-equal to mono's"
        gap = max(result.comparison.max_relative for result in self.results)
        num_other = sum(result.comparison.token is not None for result in self.results)
        tokens = f"tokens differ in {num_other} requests" if num_other else "all tokens equal"
        # Says what was not asked, so that nobody takes it for the exact criterion.
        return (
            f"{requests}, {tokens}, logits within {gap:.1e} of the row's largest (let pass: equal "
            f"tokens or {self.bound:.1e}; exact sums are off)"
        )

    def _crossing(self) -> str:
        if not self.is_disaggregated:
            return "the deployment has no prefill replica: nothing crossed"
        num_bytes = sum(result.ledger.bytes_received for result in self.results)
        return (
            f"KV of {self.num_transferred_tokens} prompt tokens crossed in {num_bytes:,} bytes, "
            f"as expected"
        )

    def table(self) -> Table:
        """Return one row per request."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for name in ("prompt", "in", "out", "setting", "tokens", "logits", "KV", "received"):
            justify: JustifyMethod = "right" if name in ("in", "out", "received") else "left"
            table.add_column(name, justify=justify, no_wrap=True)
        for result in self.results:
            table.add_row(*_cells(result))
        return table

    def to_data(self, show: ShowToken) -> dict[str, Any]:
        """Return everything, with verdict and findings, as plain data."""
        return {
            "is_equal": self.is_equal,
            "verdict": self.verdict(),
            "findings": self.findings(show),
            **msgspec.to_builtins(self),
        }


def compare_results(
    asked: Sequence[tuple[str, int, str]],
    *,
    expected: Sequence[Run],
    got: Sequence[Run],
    is_disaggregated: bool,
) -> list[Result]:
    """Compare both sides' runs, request by request.

    Args:
        asked: (prompt, its length in tokens, setting) per request.
        expected: Mono's runs.
        got: The deployment's.
        is_disaggregated: Whether ledgers must show a transfer.
    """
    return [
        Result(
            prompt=prompt,
            num_prompt_tokens=num_tokens,
            setting=setting,
            comparison=compare_runs(theirs, ours),
            ledger=ours.ledger,
            faults=disaggregation_faults(ours.ledger, num_tokens) if is_disaggregated else [],
        )
        for (prompt, num_tokens, setting), theirs, ours in zip(asked, expected, got, strict=True)
    ]


def _gaps(comparison: Comparison, block_size: int, show: ShowToken) -> list[str]:
    """Say where two runs differ, the earliest cause last."""
    lines = []
    token, logits, kv = comparison.token, comparison.logits, comparison.kv
    if token is not None:
        lines.append(
            f"first different token at output {token.position}: mono {show(token.expected)}, "
            f"deployment {show(token.got)}"
        )
    if logits is not None:
        lines.append(
            f"logits differ from output {logits.position} on, there by at most "
            f"{logits.max_abs:.2e} (token {show(logits.token_id)}, {logits.num_different} differ)"
        )
    if kv is not None:
        last = kv.first_token + RUN_TOKENS - 1
        lines.append(
            f"KV differs first in layer {kv.layer}, tokens {kv.first_token}-{last} (block "
            f"{kv.first_token // block_size} of the sequence), seen at output {kv.position}"
        )
    return lines


def _cells(result: Result) -> tuple[str, ...]:
    comparison, ledger = result.comparison, result.ledger
    token, logits, kv = comparison.token, comparison.logits, comparison.kv
    return (
        _snippet(result.prompt, 20),
        str(result.num_prompt_tokens),
        str(ledger.output_tokens),
        result.setting,
        f"differ at {token.position}" if token else "equal",
        f"gap {comparison.max_abs:.0e}" if logits else "equal",
        f"layer {kv.layer}" if kv else "equal",
        ("(!) " if result.faults else "") + f"{ledger.bytes_received:,} B",
    )


def _snippet(text: str, width: int) -> str:
    """Quote the beginning of a prompt on one line."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) + 2 <= width else f'"{line[: width - 5]}..."'
