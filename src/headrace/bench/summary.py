"""What a load came to: percentiles, rates, goodput, and which of two deployments did better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.bench.client import Outcome
from headrace.bench.rows import Row, make_row

# Under this difference, and under twice the noise of the medians, two loads are called alike.
LEAST_DIFFERENCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What an answer must keep to for its tokens to count as goodput.

    Attributes:
        ttft_s: Time to the first token at most [s].
        itl_s: Mean time between tokens at most [s].
    """

    ttft_s: float = 1.0
    itl_s: float = 0.1

    def is_met(self, outcome: Outcome) -> bool:
        """Whether an answer ended well and in time."""
        if outcome.error or outcome.first_s is None:
            return False
        mean_s = (outcome.last_s - outcome.first_s) / max(1, outcome.num_tokens - 1)
        return outcome.ttft_s <= self.ttft_s and mean_s <= self.itl_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one load.

    Attributes:
        num_requests: Requests sent.
        num_tokens: Tokens that came.
        took_s: From the first request to the last token [s].
        ttft_ms: p50, p90 and p99 of the time to the first token [ms].
        itl_ms: Likewise of the time between tokens [ms].
        e2e_ms: Likewise of the whole time [ms].
        goodput: Requests a second that met the SLO.
        num_good: How many did.
        ttft_noise: Relative standard error of the mean time to first token.
        errors: How often each error came.
    """

    num_requests: int
    num_tokens: int
    took_s: float
    ttft_ms: tuple[float, float, float]
    itl_ms: tuple[float, float, float]
    e2e_ms: tuple[float, float, float]
    goodput: float
    num_good: int
    ttft_noise: float
    errors: dict[str, int]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second over the whole load."""
        return self.num_tokens / self.took_s


def summarise(outcomes: Sequence[Outcome], slo: Slo) -> Summary:
    """Return the figures of a load that has at least one request."""
    good = [one for one in outcomes if not one.error and one.first_s is not None]
    took_s = max(one.last_s for one in outcomes) - min(one.sent_s for one in outcomes)
    ttft_s = np.array([one.ttft_s for one in good])
    num_good = sum(map(slo.is_met, outcomes))
    noise = float(ttft_s.std() / ttft_s.mean() / np.sqrt(len(ttft_s))) if len(good) > 1 else 1.0
    return Summary(
        num_requests=len(outcomes),
        num_tokens=sum(one.num_tokens for one in outcomes),
        took_s=max(took_s, 1e-9),
        ttft_ms=_percentiles(ttft_s),
        itl_ms=_percentiles(np.array([gap for one in good for gap in one.gaps_s])),
        e2e_ms=_percentiles(np.array([one.took_s for one in good])),
        goodput=num_good / max(took_s, 1e-9),
        num_good=num_good,
        ttft_noise=noise,
        errors=dict(Counter(one.error for one in outcomes if one.error)),
    )


def to_row(summary: Summary, *, case: str, variant: str = "headrace") -> Row:
    """Return the row of a load."""
    names = ("p50", "p90", "p99")
    return make_row(
        "serve",
        case,
        variant,
        value=round(summary.tokens_per_s, 1),
        unit="tokens/s",
        requests=summary.num_requests,
        tokens=summary.num_tokens,
        took_s=round(summary.took_s, 3),
        ttft_ms=dict(zip(names, summary.ttft_ms, strict=True)),
        itl_ms=dict(zip(names, summary.itl_ms, strict=True)),
        e2e_ms=dict(zip(names, summary.e2e_ms, strict=True)),
        goodput=round(summary.goodput, 3),
        good_requests=summary.num_good,
        errors=summary.errors,
    )


def describe(summary: Summary, slo: Slo) -> str:
    """Return the figures in a few lines."""
    lines = [
        f"{summary.num_requests} requests, {summary.num_tokens} tokens in {summary.took_s:.2f} s: "
        f"{summary.tokens_per_s:,.0f} tokens/s",
        _line("time to first token", summary.ttft_ms),
        _line("between tokens", summary.itl_ms),
        _line("whole answer", summary.e2e_ms),
        f"goodput {summary.goodput:.2f} requests/s: {summary.num_good} of {summary.num_requests} "
        f"kept ttft <= {slo.ttft_s:g} s and itl <= {slo.itl_s:g} s",
    ]
    lines += [f"{count} failed: {error}" for error, count in summary.errors.items()]
    return "\n".join(lines)


def compare(split: Summary, mono: Summary) -> str:
    """Answer in one paragraph whether prefill and decode should be apart, under this load."""
    noise = max(LEAST_DIFFERENCE, 2 * max(split.ttft_noise, mono.ttft_noise))
    gain = split.goodput / mono.goodput - 1 if mono.goodput else float(split.goodput > 0)
    if abs(gain) > noise:
        verdict = "Split: it" if gain > 0 else "Do not split: it"
        more = "more" if gain > 0 else "fewer"
        first = f"{verdict} serves {abs(gain):.0%} {more} requests in time"
    else:
        first = f"Either: goodput differs by {gain:+.0%}, within the noise of {noise:.0%}"
    return (
        f"{first} ({split.goodput:.2f} against {mono.goodput:.2f} requests/s). "
        f"Time to first token p50 {split.ttft_ms[0]:.0f} against {mono.ttft_ms[0]:.0f} ms, p99 "
        f"{split.ttft_ms[2]:.0f} against {mono.ttft_ms[2]:.0f} ms; between tokens p50 "
        f"{split.itl_ms[0]:.1f} against {mono.itl_ms[0]:.1f} ms, p99 {split.itl_ms[2]:.1f} against "
        f"{mono.itl_ms[2]:.1f} ms; {split.tokens_per_s:,.0f} against {mono.tokens_per_s:,.0f} "
        f"tokens/s."
    )


def _line(name: str, values_ms: tuple[float, float, float]) -> str:
    p50, p90, p99 = values_ms
    return f"{name}: p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms"


def _percentiles(values_s: np.ndarray) -> tuple[float, float, float]:
    if not len(values_s):
        return (0.0, 0.0, 0.0)
    p50, p90, p99 = np.percentile(values_s * 1e3, (50, 90, 99))
    return (round(float(p50), 3), round(float(p90), 3), round(float(p99), 3))
