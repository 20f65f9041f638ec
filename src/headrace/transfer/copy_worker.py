"""The thread of the shm transport that copies and rings.

Split from the transport so that each side of the thread border is one file: nothing here but
``put``, ``hear``, ``start``, ``stop`` and ``counts`` is touched by the caller's thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from headrace.core.errors import TransferError
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Fragments, Immediate
from headrace.transfer.completion import Outcome
from headrace.transfer.copy import copy_fragments
from headrace.transfer.doorbell import MAX_RECORDS, RingCodec, Ringer
from headrace.transfer.segment import Segment, attach_segment

# How long a refused ring waits before the next try; the copies in between try again by themselves.
_RETRY_S = 0.002
# While writes wait to be copied, immediates travel together this often: ringing takes some 60 us, a
# third of copying 1 MiB, and wakes a process that may want the same core.
RING_S = 0.001


@dataclass(frozen=True, slots=True)
class Write:
    """One write to do."""

    source: memoryview
    target: RegionDescriptor
    fragments: Fragments
    immediate: Immediate
    token: CancelToken
    completion: Outcome


@dataclass(frozen=True, slots=True)
class Forget:
    """Unmap a peer's segment."""

    name: str


@dataclass(slots=True)
class _Bell:
    """Immediates that wait for one doorbell; ``refused_s`` is when it was first found full."""

    generation: int
    waiting: deque[tuple[Immediate, Outcome]] = field(default_factory=deque)
    refused_s: float | None = None


class CopyWorker:
    """Copies writes one after the other and rings for each.

    Args:
        codec: Authenticates immediates.
        own_bell: Path of this rank's doorbell, woken when writes are over.
        patience_s: How long a full doorbell may stay full before writes to it fail [s].
    """

    def __init__(self, codec: RingCodec, *, own_bell: str, patience_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self._codec = codec
        self._own_bell = own_bell
        self._patience_s = patience_s
        self._jobs: queue.SimpleQueue[Write | Forget | None] = queue.SimpleQueue()
        self._bells: dict[str, _Bell] = {}
        self._mapped: dict[str, Segment] = {}
        self._has_news = False
        self._is_awake = False
        self._rung_s = 0.0
        self._closing = CancelToken()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="headrace-shm", daemon=True)
        self._thread.start()

    def put(self, job: Write | Forget) -> None:
        """Queue a job.

        Raises:
            TransferError: The transport is not open: nobody would do it.
        """
        if self._thread is None:
            raise TransferError("shm transport is not open")
        self._jobs.put(job)

    def hear(self) -> None:
        """Say that the caller is about to look at its completions: later ones wake it anew."""
        self._is_awake = False

    def stop(self) -> None:
        """Let the copy under way return, fail all other writes, and end the thread."""
        if self._thread is None:
            return
        self._closing.cancel()
        self._jobs.put(None)
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        ringer = Ringer(self._codec)
        ringer.open()
        self._rung_s = time.monotonic()
        while self._step(ringer):
            # Whoever sleeps on our own doorbell learns that writes of ours are over.
            if self._has_news:
                self._has_news = False
                if not self._is_awake:
                    self._is_awake = True
                    ringer.wake(self._own_bell)
        for bell in self._bells.values():
            self._finish(bell, len(bell.waiting), error="transport closed")
        for segment in self._mapped.values():
            segment.close()
        ringer.close()

    def _step(self, ringer: Ringer) -> bool:
        """Do one job, or wait a little for a full doorbell; False at the end."""
        try:
            job = self._jobs.get(timeout=_RETRY_S if self._bells else None)
        except queue.Empty:
            self._ring_all(ringer)
            return True
        if job is None:
            return False
        if isinstance(job, Forget):
            self._forget(job.name)
        else:
            self._copy(job)
        if self._jobs.empty() or time.monotonic() - self._rung_s > RING_S:
            self._ring_all(ringer)
            self._rung_s = time.monotonic()
        return True

    def _forget(self, name: str) -> None:
        segment = self._mapped.pop(name, None)
        if segment is not None:
            segment.close()

    def _copy(self, job: Write) -> None:
        """Copy one write and queue its immediate, or finish it with the reason why not."""
        if self._closing.is_cancelled() or job.token.is_cancelled():
            self._end(job.completion, "cancelled before it began")
            return
        try:
            target = np.frombuffer(self._segment(job.target).buffer, np.uint8)
            copy_fragments(np.frombuffer(job.source, np.uint8), target, job.fragments)
        except Exception as error:  # the thread must outlive any one write; the sender hears why
            self.counts["failed"] += 1
            self._end(job.completion, f"{type(error).__name__}: {error}")
            return
        self.counts["writes"] += 1
        self.counts["bytes"] += job.immediate.num_bytes
        bell = self._bells.get(job.target.doorbell)
        if bell is None:
            bell = self._bells[job.target.doorbell] = _Bell(job.target.generation)
        bell.waiting.append((job.immediate, job.completion))

    def _segment(self, target: RegionDescriptor) -> Segment:
        if target.name not in self._mapped:
            self._mapped[target.name] = attach_segment(target.name, target.num_bytes)
        return self._mapped[target.name]

    def _ring_all(self, ringer: Ringer) -> None:
        for path, bell in list(self._bells.items()):
            self._ring(ringer, path, bell)
            if not bell.waiting:
                del self._bells[path]

    def _ring(self, ringer: Ringer, path: str, bell: _Bell) -> None:
        """Deliver waiting immediates until the doorbell refuses; give up when it stays full."""
        while bell.waiting:
            batch = [immediate for immediate, _ in list(bell.waiting)[:MAX_RECORDS]]
            try:
                is_taken = ringer.ring(path, batch, generation=bell.generation)
            except OSError as error:
                self._fail(bell, f"doorbell {path}: {error.strerror}; its owner is gone")
                return
            if not is_taken:
                self._be_patient(bell, path)
                return
            bell.refused_s = None
            self._finish(bell, len(batch), error="")

    def _be_patient(self, bell: _Bell, path: str) -> None:
        now_s = time.monotonic()
        if bell.refused_s is None:
            bell.refused_s = now_s
        elif now_s - bell.refused_s > self._patience_s:
            self._fail(bell, f"doorbell {path} was full for {self._patience_s} s")

    def _fail(self, bell: _Bell, error: str) -> None:
        self.counts["failed"] += len(bell.waiting)
        self._finish(bell, len(bell.waiting), error=error)

    def _finish(self, bell: _Bell, number: int, *, error: str) -> None:
        for _ in range(number):
            _, completion = bell.waiting.popleft()
            self._end(completion, error)

    def _end(self, completion: Outcome, error: str) -> None:
        completion.finish(error)
        self._has_news = True
