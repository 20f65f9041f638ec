"""What every rank has, whatever its role: opened in order, closed in reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.comm.group import Group, SingleGroup
from headrace.comm.shared_memory import SharedMemoryGroup
from headrace.core.clock import SystemClock
from headrace.core.codec import Codec
from headrace.core.flight import Flight
from headrace.core.launch import LaunchSpec
from headrace.core.layouts import CacheLayout
from headrace.core.messages import Heartbeat, Message, RankInfo, RegionDescriptor
from headrace.core.transport import Region
from headrace.engine.flight_log import FlightLog
from headrace.engine.kept import Kept
from headrace.engine.load import Loaded, load_backend
from headrace.engine.load_reports import LoadReports
from headrace.engine.memory import make_layout
from headrace.engine.pulse import Pulse
from headrace.engine.transport import make_transport
from headrace.kvcache.pool import BlockPool
from headrace.transfer.control import ControlSocket
from headrace.transfer.engine import TransferEngine

# Loading may take long on one rank and not on another; collectives begin only after the slowest.
JOIN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every rank has, whatever its role."""

    spec: LaunchSpec
    control: ControlSocket
    group: Group
    loaded: Loaded
    transfer: TransferEngine
    region: Region | None
    descriptor: RegionDescriptor | None
    layout: CacheLayout
    pool: BlockPool
    flight: Flight

    @property
    def info(self) -> RankInfo:
        """This rank as its peers address it."""
        return RankInfo(
            rank=self.spec.rank, generation=self.spec.generation, address=self.control.address
        )

    def peer_address(self, rank: int) -> str:
        """Control address of another rank of the replica, which is on the same host."""
        return msgspec.structs.replace(self.spec, rank=rank).address

    def flight_log(self) -> FlightLog:
        """Return what writes this rank's flight record."""
        name = f"flight-{self.spec.name}-{self.spec.generation}.json"
        return FlightLog(self.flight, path=Path(self.spec.run_dir) / name, clock=SystemClock())

    def tell_peers(self, message: Message) -> None:
        """Send a message to every other rank of the replica."""
        for rank in range(self.spec.sharding.num_ranks):
            if rank != self.spec.rank:
                self.control.send(self.peer_address(rank), message)

    def open_pulse(
        self,
        stack: ExitStack,
        *,
        observe: Callable[[], Heartbeat],
        listeners: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Send signs of life to the supervisor and to ``listeners`` until the stack closes."""
        spec = self.spec
        pulse = Pulse(
            address=spec.address.removesuffix(".ctl") + ".pulse",
            codec=Codec(bytes.fromhex(spec.key)),
            host=spec.control_host,
            interval_s=spec.engine.heartbeat_s,
            observe=observe,
            listeners=lambda: (spec.supervisor, *listeners()),
        )
        pulse.open()
        stack.callback(pulse.close)


def open_parts(spec: LaunchSpec, control: ControlSocket, stack: ExitStack, kept: Kept) -> Parts:
    """Join the group and open the region of one generation; load what is not loaded yet."""
    kept.group.replace(_open_group(spec))
    stack.callback(kept.group.close)
    loaded = kept.loaded = kept.loaded or _load(spec, control, kept)
    layout = make_layout(
        spec.engine,
        loaded.backend.schemas,
        heads=loaded.heads,
        max_model_tokens=loaded.max_model_tokens,
        cap_bytes=loaded.free_bytes,
    )
    transfer = TransferEngine(make_transport(spec), rank=spec.rank, generation=spec.generation)
    transfer.open()
    stack.callback(transfer.close)
    region, descriptor = _make_pool(loaded, transfer, layout, stack)
    return Parts(
        spec=spec,
        control=control,
        group=kept.group,
        loaded=loaded,
        transfer=transfer,
        region=region,
        descriptor=descriptor,
        layout=layout,
        pool=BlockPool(
            layout.num_blocks,
            layout.block_size,
            pinned_fraction=spec.engine.pinned_fraction,
            prefix_cache=spec.engine.prefix_cache,
        ),
        flight=Flight(spec.name, generation=spec.generation),
    )


def _make_pool(
    loaded: Loaded, transfer: TransferEngine, layout: CacheLayout, stack: ExitStack
) -> tuple[Region | None, RegionDescriptor | None]:
    """Make the pool where the backend wants it; a device's own memory has no region so far."""
    backend = loaded.backend
    if backend.owns_memory:
        backend.allocate(layout)
        stack.callback(backend.close)
        return None, None
    region, descriptor = transfer.allocate(layout)
    stack.callback(region.close)
    backend.attach(region.buffer, num_blocks=layout.num_blocks, block_size=layout.block_size)
    stack.callback(backend.close)
    return region, descriptor


def _load(spec: LaunchSpec, control: ControlSocket, kept: Kept) -> Loaded:
    on_progress = LoadReports(
        replica=spec.replica,
        rank=spec.rank,
        send=lambda message: control.send(spec.supervisor, message),
    )
    return load_backend(spec, kept.group, on_progress)


def _open_group(spec: LaunchSpec) -> Group:
    if spec.sharding.num_ranks == 1:
        return SingleGroup()
    return SharedMemoryGroup.open(
        f"{spec.deployment_id}-{spec.replica}-{spec.generation}.group",
        rank=spec.rank,
        size=spec.sharding.num_ranks,
        generation=spec.generation,
        timeout_s=spec.engine.collective_timeout_s,
        join_timeout_s=JOIN_TIMEOUT_S,
    )
