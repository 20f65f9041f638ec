"""The tcp transport: writes between any hosts, straight from region to region of CPU memory.

A region is memory of this process; nobody maps it. Peers connect (``tcp_link``), prove the
deployment's key (``tcp_handshake``) and send frames (``tcp_frames``) that a thread of ours receives
into what was granted to their sessions (``tcp_receiver``, ``grants``). The proof of quiet is a
fence that the receiver has read on every socket of the link; and at the receiver, a grant that is
taken back ends whatever is still under way, so that nothing rests on the sender's word.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from collections.abc import Callable
from itertools import count
from urllib.parse import urlsplit

from headrace.core.errors import ConfigError, TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Fragments, Grant, Immediate, Region
from headrace.transfer.completion import Outcome, finished
from headrace.transfer.grants import Grants
from headrace.transfer.tally import Tally
from headrace.transfer.tcp_link import Link, LinkConfig
from headrace.transfer.tcp_receiver import Receiver


class TcpRegion:
    """Zeroed memory of this process that granted writers can reach until ``close``."""

    def __init__(self, mapping: mmap.mmap, forget: Callable[[], None]) -> None:
        self._mapping = mapping
        self._buffer = memoryview(mapping)
        self._forget = forget

    @property
    def buffer(self) -> memoryview:
        """Writable bytes; valid until ``close``."""
        return self._buffer

    def close(self) -> None:
        """Take every grant back and unmap. Idempotent; arrays that view the bytes keep them."""
        self._forget()
        with contextlib.suppress(BufferError):
            self._buffer.release()
            self._mapping.close()


class TcpTransport:
    """Transport between ranks that reach each other's hosts.

    Args:
        owner: Rank's name, e.g. ``decode.0`` (``LaunchSpec.name``).
        rank: Rank's index in its replica.
        generation: Rank's generation; a connection that means another is refused.
        key: Secret of the deployment; both ends of every connection prove it.
        host: Address of this host to listen on, as peers reach it.
        num_sockets: Data sockets per peer.
        connect_s: How long connecting and its handshake may take, and being shaken hands with [s].
        patience_s: How long bytes or a fence may stand still [s].
    """

    def __init__(
        self,
        *,
        owner: str,
        rank: int,
        generation: int,
        key: bytes,
        host: str = "127.0.0.1",
        num_sockets: int = 2,
        connect_s: float = 5.0,
        patience_s: float = 10.0,
    ) -> None:
        self._host = host
        self._rank = rank
        self._generation = generation
        self._config = LinkConfig(
            owner=owner,
            rank=rank,
            generation=generation,
            key=key,
            num_sockets=num_sockets,
            connect_s=connect_s,
            patience_s=patience_s,
        )
        self._grants = Grants()
        self._receiver = Receiver(
            host=host,
            key=key,
            generation=generation,
            grants=self._grants,
            deliver=self._take,
            handshake_s=connect_s,
            patience_s=patience_s,
        )
        self._arrived: deque[Immediate] = deque()
        self._regions: dict[int, TcpRegion] = {}
        self._numbers = count()
        self._links: dict[str, Link] = {}
        self._ending: list[Link] = []
        self._used: dict[tuple[str, int], Link] = {}
        self._sent = Tally()
        self._wake: int | None = None

    def open(self) -> None:
        """Listen for peers."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._receiver.open()

    def allocate(self, layout: CacheLayout) -> tuple[Region, RegionDescriptor]:
        """Make a zeroed region; its memory is taken now, not when the first bytes come."""
        number = next(self._numbers)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        try:
            mapping = mmap.mmap(-1, layout.num_bytes, flags=flags)
        except OSError as error:
            raise ConfigError(
                f"no memory for a KV region of {-(-layout.num_bytes >> 20)} MiB: "
                f"{error.strerror}; make kv_cache_mib smaller"
            ) from error
        region = TcpRegion(mapping, lambda: self._drop(number))
        self._regions[number] = region
        descriptor = RegionDescriptor(
            transport="tcp",
            name=f"{self._address}/{number}",
            doorbell=self._address,
            rank=self._rank,
            generation=self._generation,
            num_bytes=layout.num_bytes,
            layout=layout,
        )
        return region, descriptor

    def write(
        self,
        source: memoryview,
        target: RegionDescriptor,
        fragments: Fragments,
        *,
        immediate: Immediate,
        token: CancelToken,
    ) -> Outcome:
        """Queue one write on the link to its owner, which is opened if need be.

        Raises:
            TransferError: The descriptor is of another transport, or this one is not open.
        """
        number = _number(target)
        if self._wake is None:
            raise TransferError("tcp transport is not open")
        link = self._used.get((target.doorbell, immediate.imm))
        if link is None:
            link = self._link(target)
            self._used[target.doorbell, immediate.imm] = link
        return link.write(source, fragments, region=number, immediate=immediate, token=token)

    def fence(self, target: RegionDescriptor, imm: int) -> Outcome:
        """End the writes of a session; see ``Transport.fence``."""
        link = self._used.pop((target.doorbell, imm), None)
        return finished() if link is None else link.fence(imm)

    def grant(self, imm: int, grant: Grant) -> None:
        """Let a session's writers write; see ``Transport.grant``."""
        number = _number(grant.region)
        region = self._regions.get(number)
        if region is None or not grant.region.name.startswith(f"{self._address}/"):
            raise TransferError(f"region {grant.region.name}: expected one of {self._address}")
        self._grants.add(imm, grant, number=number, buffer=region.buffer)

    def revoke(self, imm: int) -> None:
        """Take a grant back; a connection that is writing under it is cut off."""
        self._grants.revoke(imm)

    def poll(self) -> list[Immediate]:
        """Return the immediates of writes that are whole."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fileno())
        found = []
        while self._arrived:
            found.append(self._arrived.popleft())
        return found

    def fileno(self) -> int:
        """Return an event descriptor that both directions ring."""
        if self._wake is None:
            raise RuntimeError("tcp transport is not open")
        return self._wake

    def forget(self, target: RegionDescriptor) -> None:
        """Cut the link to an owner whose generation is over; its writes end with an error."""
        link = self._links.pop(target.doorbell, None)
        if link is not None:
            link.shut(f"{target.doorbell} is gone")
            self._bury(link)

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name."""
        sent, came = self._sent, self._receiver.counts
        return {
            "headrace_transfer_writes_total": float(sent["writes"]),
            "headrace_transfer_written_bytes_total": float(sent["bytes"]),
            "headrace_transfer_failed_writes_total": float(sent["failed"]),
            "headrace_transfer_refused_frames_total": float(came["refused_frames"]),
            "headrace_transfer_refused_bytes_total": float(came["refused_bytes"]),
            "headrace_transfer_refused_connections_total": float(came["refused_connections"]),
            "headrace_transfer_failed_handshakes_total": float(came["failed_handshakes"]),
            "headrace_transfer_bad_frames_total": float(came["bad_frames"]),
        }

    def close(self) -> None:
        """Cut every connection, both ways, and free the port. Idempotent."""
        for link in self._all_links():
            link.shut("transport closed")
        for link in self._all_links():
            link.join()
        self._links.clear()
        self._receiver.close()
        while self._regions:
            self._regions.popitem()[1].close()
        if self._wake is not None:
            wake, self._wake = self._wake, None
            os.close(wake)

    @property
    def _address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"tcp://{host}:{self._receiver.port}"

    def _all_links(self) -> list[Link]:
        return [*self._links.values(), *self._ending]

    def _link(self, target: RegionDescriptor) -> Link:
        """Return the link to an owner; one that broke is replaced, for sessions that begin now."""
        link = self._links.get(target.doorbell)
        if link is not None and not link.is_broken():
            return link
        if link is not None:
            self._bury(link)
        host, port = _host_and_port(target)
        link = Link(
            self._config,
            host=host,
            port=port,
            target_generation=target.generation,
            counts=self._sent,
            on_news=self._ring,
        )
        self._links[target.doorbell] = link
        link.start()
        return link

    def _bury(self, link: Link) -> None:
        """Keep a link whose threads have yet to end, so that ``close`` can wait for them."""
        self._ending = [one for one in self._ending if one.is_alive()]
        self._ending.append(link)

    def _take(self, immediate: Immediate) -> None:
        self._arrived.append(immediate)
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    def _drop(self, number: int) -> None:
        self._regions.pop(number, None)
        self._grants.revoke_region(number)


def _number(target: RegionDescriptor) -> int:
    """Return the number of a tcp region at its owner."""
    base, _, number = target.name.rpartition("/")
    is_number = number.isascii() and number.isdecimal() and len(number) < 10
    if target.transport != "tcp" or base != target.doorbell or not is_number:
        raise TransferError(f"region {target.name} ({target.transport}): expected a tcp region")
    return int(number)


def _host_and_port(target: RegionDescriptor) -> tuple[str, int]:
    host, port = None, None
    with contextlib.suppress(ValueError):
        address = urlsplit(target.doorbell)
        if address.scheme == "tcp":
            host, port = address.hostname, address.port
    if not host or not port:
        raise TransferError(f"doorbell {target.doorbell!r}: expected tcp://HOST:PORT")
    return host, port
