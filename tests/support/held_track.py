"""A track whose prefill steps are done when a test says so, and not a moment earlier."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from headrace.engine.lane import Mark


class HeldTrack:
    """Keeps steps until ``release``: their KV is not even written before.

    What decode must not read yet is then wrong for sure, not only now and then.

    Attributes:
        num_handed_over: Marks that decode waited for.
        is_launched: Whether it may wait for one.
    """

    def __init__(self) -> None:
        self._held: list[tuple[Callable[[], object], _HeldMark]] = []
        self.num_handed_over = 0
        self.is_launched = True

    @property
    def num_held(self) -> int:
        """Steps that are in flight."""
        return len(self._held)

    def beside(self) -> AbstractContextManager[object]:
        return nullcontext()

    def join(self) -> None:
        pass

    def enqueue(self, work: Callable[[], object]) -> Mark:
        mark = _HeldMark(self)
        self._held.append((work, mark))
        return mark

    def close(self) -> None:
        self._held.clear()

    def release(self, num_steps: int = 1) -> None:
        """Let the oldest steps run and pass."""
        for _ in range(min(num_steps, len(self._held))):
            work, mark = self._held.pop(0)
            work()
            mark.is_done = True

    def release_through(self, mark: _HeldMark) -> None:
        """Do what a device does when a stream waits for a mark: run all up to it."""
        self.num_handed_over += 1
        while not mark.is_done:
            self.release()


class _HeldMark:
    def __init__(self, track: HeldTrack) -> None:
        self._track = track
        self.is_done = False

    def has_passed(self) -> bool:
        return self.is_done

    def hold_back(self) -> bool:
        if not self._track.is_launched:
            return False
        self._track.release_through(self)
        return True
