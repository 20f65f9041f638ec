"""Signs of life of one rank, and what they make the router think of it."""

from __future__ import annotations

from msgspec import Struct

from headrace.core.flight import told_position
from headrace.core.messages import Heartbeat
from headrace.serving.router.choice import Health
from headrace.serving.router.config import RegistryConfig


class RankSigns(Struct):
    """What is known of one rank of the topology, under one generation.

    A rank moves when its progress grows, and as long as nobody waits for it. Whether anybody does
    is judged by both sides: a request that was sent there and never arrived is no work to the
    rank, and stands still all the same.

    Attributes:
        generation: The generation that is believed.
        address: Its control address.
        heard_s: When it was last heard, or joined [s].
        moved_s: When it last moved [s].
        in_flight: Sequences that this router sent there and that are not over.
        beat: Last heartbeat.
    """

    generation: int
    address: str
    heard_s: float
    moved_s: float
    in_flight: int = 0
    beat: Heartbeat | None = None

    def take(self, beat: Heartbeat, now_s: float) -> None:
        """Take in a heartbeat of this generation."""
        old, self.beat = self.beat, beat
        self.heard_s = now_s
        if old is None or not self._is_awaited or beat.progress != old.progress:
            self.moved_s = now_s

    def send(self, num_sequences: int, now_s: float) -> None:
        """Count sequences that were sent there."""
        if not self._is_awaited:
            self.moved_s = now_s
        self.in_flight += num_sequences

    def fault(self, now_s: float, config: RegistryConfig) -> str:
        """Return what is wrong with the rank, to be read behind its name; empty if nothing is."""
        silent_s, standing_s = now_s - self.heard_s, now_s - self.moved_s
        if self.beat is None:
            return "has not been heard yet"
        if silent_s > config.late_s:
            return f"has been silent for {silent_s:.1f} s{self._where}"
        if self._is_awaited and standing_s > config.stuck_s:
            return f"has made no progress for {standing_s:.1f} s with requests waiting{self._where}"
        return ""

    def health(self, now_s: float, config: RegistryConfig) -> Health:
        """Return how far the rank may be relied on."""
        if now_s - self.heard_s > config.dead_s:
            return Health.DEAD
        return Health.LATE if self.fault(now_s, config) else Health.GOOD

    @property
    def _where(self) -> str:
        """Where the last heartbeat came from, as the end of a sentence."""
        position = told_position(self.beat.counters) if self.beat is not None else ""
        return f", last heard in {position}" if position else ""

    @property
    def _is_awaited(self) -> bool:
        return self.in_flight > 0 or (self.beat is not None and self.beat.has_work)
