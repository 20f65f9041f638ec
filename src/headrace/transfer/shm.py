"""The shm transport: writes between processes of one host, through /dev/shm.

A region is a segment that peers map. One worker thread per rank copies, so that computing goes on
(copies release the interpreter lock), and then rings the peer's doorbell. A write is over when
its copy has returned: that is the transport's proof of quiet.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Fragments, Grant, Immediate, Region
from headrace.transfer.completion import Outcome, finished
from headrace.transfer.copy_worker import CopyWorker, Forget, Write
from headrace.transfer.doorbell import Doorbell, RingCodec
from headrace.transfer.segment import Segment, create_segment


class ShmTransport:
    """Transport between processes (or threads) of one host.

    Args:
        deployment_id: Prefix of segment names.
        owner: Rank's name, e.g. ``decode.0`` (``LaunchSpec.name``).
        rank: Rank's index in its replica.
        generation: Rank's generation; part of every name.
        run_dir: Private folder that holds the doorbells of the deployment.
        key: Secret of the deployment; keys the MAC of doorbell records.
        patience_s: How long a full doorbell may stay full before writes to it fail [s].
    """

    def __init__(
        self,
        *,
        deployment_id: str,
        owner: str,
        rank: int,
        generation: int,
        run_dir: Path,
        key: bytes,
        patience_s: float = 5.0,
    ) -> None:
        self._deployment_id = deployment_id
        self._prefix = f"{deployment_id}.{owner}.{generation}"
        self._rank = rank
        self._generation = generation
        self._run_dir = run_dir
        self._folder = os.fspath(run_dir)
        self._path = run_dir / f"{owner}.{generation}.bell"
        self._codec = RingCodec(key)
        self._bell = Doorbell(self._path, codec=self._codec, generation=generation)
        self._worker = CopyWorker(
            self._codec, own_bell=os.fspath(self._path), patience_s=patience_s
        )
        self._numbers = count()
        self._segments: list[Segment] = []

    def open(self) -> None:
        """Bind the doorbell and start the worker."""
        self._bell.open()
        self._worker.start()

    def allocate(self, layout: CacheLayout) -> tuple[Region, RegionDescriptor]:
        """Make a zeroed segment that holds ``layout``."""
        segment = create_segment(f"{self._prefix}.{next(self._numbers)}", layout.num_bytes)
        self._segments.append(segment)
        descriptor = RegionDescriptor(
            transport="shm",
            name=segment.name,
            doorbell=os.fspath(self._path),
            rank=self._rank,
            generation=self._generation,
            num_bytes=layout.num_bytes,
            layout=layout,
        )
        return segment, descriptor

    def write(
        self,
        source: memoryview,
        target: RegionDescriptor,
        fragments: Fragments,
        *,
        immediate: Immediate,
        token: CancelToken,
    ) -> Outcome:
        """Hand one write to the worker; see ``Transport.write``.

        Raises:
            TransferError: The descriptor is of another transport, deployment or run folder.
        """
        self._check(target)
        completion = Outcome()
        self._worker.put(Write(source, target, fragments, immediate, token, completion))
        return completion

    def fence(self, target: RegionDescriptor, imm: int) -> Outcome:
        """Nothing to wait for: a write is over when its copy has returned."""
        return finished()

    def grant(self, imm: int, grant: Grant) -> None:
        """Nothing to keep: peers map the whole segment."""

    def revoke(self, imm: int) -> None:
        """Nothing to take back."""

    def poll(self) -> list[Immediate]:
        """Drain the doorbell; look at completions after that, never before."""
        found = self._bell.drain()
        # Not before: a wake that came in between would be drained and yet believed to be waiting.
        self._worker.hear()
        return found

    def fileno(self) -> int:
        """Return the doorbell's descriptor; the worker rings it too when a write is done."""
        return self._bell.fileno()

    def forget(self, target: RegionDescriptor) -> None:
        """Unmap a peer's segment after the writes already submitted."""
        self._worker.put(Forget(target.name))

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name."""
        counts = self._worker.counts
        return {
            "headrace_transfer_writes_total": float(counts["writes"]),
            "headrace_transfer_written_bytes_total": float(counts["bytes"]),
            "headrace_transfer_failed_writes_total": float(counts["failed"]),
            "headrace_transfer_forged_rings_total": float(self._bell.dropped["forged"]),
        }

    def close(self) -> None:
        """Stop the worker, unmap peers, unlink own names. Idempotent."""
        self._worker.stop()
        self._bell.close()
        while self._segments:
            self._segments.pop().close()

    def _check(self, target: RegionDescriptor) -> None:
        if target.transport != "shm" or not target.name.startswith(f"{self._deployment_id}."):
            raise TransferError(
                f"region {target.name} ({target.transport}): expected an shm region of "
                f"deployment {self._deployment_id}"
            )
        if target.doorbell.rpartition("/")[0] != self._folder or "\0" in target.doorbell:
            raise TransferError(f"doorbell {target.doorbell!r}: expected one in {self._run_dir}")
        if not 0 <= target.generation < 2**64:
            raise TransferError(f"region {target.name}: generation {target.generation}")
