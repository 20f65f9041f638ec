"""Judges logits of a device engine by teacher forcing; pure, so that faults can be planted.

The engine's own tokens are run through plain torch twice: in float64 (*exact*) and in the model's
dtype (*plain*). What plain is off by is the noise of the dtype, measured on this very run; twice
the noise is the margin of the engine.

Shape letters: L = output tokens   V = vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from rich.table import Table

from headrace.cli.verify_compare import Run

# Error of the engine that is let pass, in errors of the plain path (style rule of the kernels).
TIMES_NOISE = 2.0
# Room where plain happens to be nearly exact (fp32), relative to the largest logit.
LEAST_MARGIN = 2.0**-17
# A mean over fewer positions is one near tie of a gate.
LEAST_POSITIONS = 32


class ForcedResult(Struct, frozen=True, kw_only=True):
    """One request.

    Attributes:
        prompt: Its text.
        num_prompt_tokens: Its length.
        setting: ``greedy`` or ``seeded``.
        num_compared: Output tokens.
        max_abs: Largest difference of a logit from the exact one.
        mean_abs: Mean difference.
        max_plain: Largest difference of a logit of the plain path.
        mean_plain: Mean difference of the plain path.
        max_behind: How far the exact logit of a greedy token lies behind the largest, at most.
        position: First output token that is at fault; None when there is none.
        fault: What is wrong there.
    """

    prompt: str
    num_prompt_tokens: int
    setting: str
    num_compared: int
    max_abs: float
    mean_abs: float
    max_plain: float
    mean_plain: float
    max_behind: float
    position: int | None = None
    fault: str = ""


class ForcedReport(Struct, frozen=True, kw_only=True):
    """A whole verification by teacher forcing.

    Attributes:
        model: Name of the model.
        deployment: Its shardings in one line.
        device: Where it ran.
        dtype: Of the model as it was run.
        margin: What a logit may be off by, and a greedy token behind.
        room: The part of the margin that is not measured noise.
        results: One per request.
    """

    model: str
    deployment: str
    device: str
    dtype: str
    margin: float
    room: float
    results: list[ForcedResult]

    @property
    def means(self) -> tuple[float, float]:
        """Mean difference of a logit over all positions: the engine's, and the plain path's."""
        counts = [result.num_compared for result in self.results]
        return (
            float(np.average([result.mean_abs for result in self.results], weights=counts)),
            float(np.average([result.mean_plain for result in self.results], weights=counts)),
        )

    @property
    def faults(self) -> list[str]:
        """What is wrong with the run as a whole."""
        num_compared = sum(result.num_compared for result in self.results)
        engine, plain = self.means
        if num_compared >= LEAST_POSITIONS and engine > TIMES_NOISE * plain + self.room:
            return [
                f"logits are off by {engine:.2e} in the mean over {num_compared} positions: plain "
                f"{self.dtype} is by {plain:.2e}, and twice that is let pass"
            ]
        return []

    @property
    def is_equal(self) -> bool:
        """Whether the engine computes the model."""
        return not self.findings()

    def findings(self) -> list[str]:
        """Return one line for each request at fault, then what is wrong as a whole."""
        lines = [
            f"{each.prompt[:40]!r} {each.setting}: output {each.position}: {each.fault}"
            for each in self.results
            if each.position is not None
        ]
        return lines + self.faults

    def verdict(self) -> str:
        """Return one line."""
        failed = sum(result.position is not None for result in self.results)
        if failed:
            return f"DIFFERENT: {failed} of {len(self.results)} requests, see above"
        if self.faults:
            return "DIFFERENT: no single position, but see above"
        engine, plain = self.means
        worst = max(result.max_abs for result in self.results)
        behind = max(result.max_behind for result in self.results)
        return (
            f"WITHIN THE NOISE: {sum(each.num_compared for each in self.results)} output tokens of "
            f"{len(self.results)} requests against float64; logits off by {worst:.2e} at most and "
            f"{engine:.2e} in the mean (plain {self.dtype}: {plain:.2e}), greedy tokens by "
            f"{behind:.2e} behind the best; margin {self.margin:.2e}"
        )

    def table(self) -> Table:
        """Return one row per request."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for name in ("prompt", "in", "out", "setting", "max", "mean", "plain max", "plain mean"):
            table.add_column(name, no_wrap=True)
        for each in self.results:
            figures = (each.max_abs, each.mean_abs, each.max_plain, each.mean_plain)
            table.add_row(
                " ".join(each.prompt.split())[:18],
                str(each.num_prompt_tokens),
                str(each.num_compared),
                each.setting,
                *(f"{figure:.1e}" for figure in figures),
            )
        return table

    def to_data(self) -> dict[str, Any]:
        """Return everything, with verdict and findings, as plain data."""
        return {
            "is_equal": self.is_equal,
            "verdict": self.verdict(),
            "findings": self.findings(),
            **msgspec.to_builtins(self),
        }


def noise_margin(exact: Sequence[np.ndarray], plain: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return what a logit may be off by, twice the noise of the plain path and a little, and that.

    Args:
        exact: Per request the float64 path's logits ``[L, V]``.
        plain: Likewise those of the path in the model's dtype.
    """
    noise = max(
        float(np.abs(ours - theirs).max()) for ours, theirs in zip(plain, exact, strict=True)
    )
    largest = max(float(np.abs(logits_LV).max()) for logits_LV in exact)
    room = LEAST_MARGIN * largest
    return TIMES_NOISE * noise + room, room


def judge(
    asked: tuple[str, int, str],
    run: Run,
    *,
    exact_LV: np.ndarray,
    plain_LV: np.ndarray,
    margin: float,
) -> ForcedResult:
    """Judge one request.

    Args:
        asked: (prompt, its length in tokens, setting).
        run: What the engine made of it.
        exact_LV: Logits of the float64 path over the engine's tokens.
        plain_LV: Logits of the path in the model's dtype, likewise.
        margin: From ``noise_margin``, over all requests.

    Raises:
        ValueError: The logits are of another model, or not of every output token.
    """
    got_LV = np.stack([np.frombuffer(row, np.float32) for row in run.logits]).astype(np.float64)
    if got_LV.shape != exact_LV.shape:
        raise ValueError(f"logits {got_LV.shape} against {exact_LV.shape}")
    prompt, num_prompt_tokens, setting = asked
    # A NaN is as far off as can be, and no comparison with it would say so.
    gaps_LV = np.nan_to_num(np.abs(got_LV - exact_LV), nan=np.inf, posinf=np.inf)
    chosen_L = exact_LV[np.arange(len(exact_LV)), np.asarray(run.token_ids)]
    behind_L = exact_LV.max(1) - chosen_L if setting == "greedy" else np.zeros(len(exact_LV))
    # Written so that a margin that is NaN, from a model that overflows, lets nothing pass.
    is_off_L = ~((gaps_LV.max(1) <= margin) & (behind_L <= margin))
    position = int(is_off_L.argmax()) if is_off_L.any() else None
    plain_gaps_LV = np.abs(plain_LV - exact_LV)
    return ForcedResult(
        prompt=prompt,
        num_prompt_tokens=num_prompt_tokens,
        setting=setting,
        num_compared=len(run.token_ids),
        max_abs=float(gaps_LV.max()),
        mean_abs=float(gaps_LV.mean()),
        max_plain=float(plain_gaps_LV.max()),
        mean_plain=float(plain_gaps_LV.mean()),
        max_behind=float(behind_L.max()),
        position=position,
        fault="" if position is None else _fault(gaps_LV[position], behind_L[position], margin),
    )


def _fault(gaps_V: np.ndarray, behind: float, margin: float) -> str:
    parts = []
    if behind > margin:
        parts.append(f"the token lies {behind:.2e} behind the reference's best")
    if not gaps_V.max() <= margin:
        parts.append(f"the logit of token {gaps_V.argmax()} is off by {gaps_V.max():.2e}")
    return f"{' and '.join(parts)}: {margin:.2e} is let pass"
