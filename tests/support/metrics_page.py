"""What ``/metrics`` says, as numbers that a test can ask for."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families


class MetricsPage:
    """One reading of the page.

    Args:
        text: The exposition.
    """

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a name's samples that have these labels; ``headrace_`` is left out."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == f"headrace_{name}" and labels.items() <= sample.labels.items()
        )

    @property
    def faults(self) -> list[str]:
        """What is not as it was before the first request; empty when nothing is left of any."""
        used = self.total("total_blocks") - self.total("free_blocks")
        counts = {
            "requests in flight": self.total("requests_in_flight"),
            "running": self.total("running"),
            "waiting": self.total("waiting"),
            "blocks in use": used,
            "blocks in quarantine": self.total("rank_pool_quarantined_blocks"),
            "replicas that make no progress": 1.0 - self.total("ready"),
        }
        return [f"{what}: {count:g}" for what, count in counts.items() if count]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left, and heartbeats have told the end of every sequence.

        One from before an end says nothing of what came after it. Counts of ranks begin again
        with each generation: not to be asked after a restart.
        """
        roles = ("decode", "mono")
        ended = sum(self.total("rank_sequences_ended_total", role=role) for role in roles)
        return not self.faults and ended == self.total("finished_total")


def read_metrics(url: str) -> MetricsPage:
    """Read the page of the server at ``url``."""
    return MetricsPage(httpx.get(f"{url}/metrics").text)


def wait_metrics(
    url: str, is_reached: Callable[[MetricsPage], bool], *, timeout_s: float = 60.0
) -> MetricsPage:
    """Return the first page for which ``is_reached``, or the last one before the time was up."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        page = read_metrics(url)
        if is_reached(page) or time.monotonic() > deadline_s:
            return page
