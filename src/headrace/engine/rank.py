"""One rank from launch spec to shutdown: opens what it needs in order, closes it in reverse."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.comm.group import Group, SingleGroup
from headrace.comm.shared_memory import SharedMemoryGroup
from headrace.core.clock import SystemClock
from headrace.core.errors import HeadraceError, UserError
from headrace.core.launch import LaunchSpec
from headrace.core.layouts import CacheLayout
from headrace.core.messages import (
    Codec,
    Failed,
    Heartbeat,
    LoadProgress,
    Message,
    RankInfo,
    Ready,
    RegionDescriptor,
    Wake,
)
from headrace.core.sharding import Role, split_range
from headrace.core.transport import Region
from headrace.engine.decode import DecodeRank
from headrace.engine.emitter import Emitter
from headrace.engine.load import Loaded, load_backend
from headrace.engine.lockstep import Lockstep
from headrace.engine.loops import DecodeLoop, Loop, PrefillLoop
from headrace.engine.memory import make_layout
from headrace.engine.prefill import PrefillLead, PrefillWorker
from headrace.engine.pulse import Pulse
from headrace.engine.receiving import Receiving
from headrace.engine.stepper import Stepper
from headrace.kvcache.pool import BlockPool
from headrace.scheduler.admission import Limits
from headrace.text.tokenizer import Tokenizer
from headrace.transfer.control import ControlSocket
from headrace.transfer.engine import TransferEngine
from headrace.transfer.sender import SendSessions
from headrace.transfer.shm import ShmTransport

log = logging.getLogger(__name__)

# Loading may take long on one rank and not on another; collectives begin only after the slowest.
JOIN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What every rank has, whatever its role."""

    spec: LaunchSpec
    control: ControlSocket
    group: Group
    loaded: Loaded
    transfer: TransferEngine
    region: Region
    descriptor: RegionDescriptor
    layout: CacheLayout
    pool: BlockPool

    def peer_address(self, rank: int) -> str:
        """Control address of another rank of the replica."""
        return msgspec.structs.replace(self.spec, rank=rank).address

    def tell_peers(self, message: Message) -> None:
        """Send a message to every other rank of the replica."""
        for rank in range(self.spec.sharding.num_ranks):
            if rank != self.spec.rank:
                self.control.send(self.peer_address(rank), message)


def run_rank(spec: LaunchSpec) -> None:
    """Run one rank until it is told to shut down.

    Works as the main thing of a process and as one thread among others: nothing global is used.

    Raises:
        HeadraceError: The rank could not start or go on; the supervisor has been told.
    """
    control = ControlSocket(spec.address, Codec(bytes.fromhex(spec.key)))
    control.open()
    try:
        with ExitStack() as stack:
            _open(spec, control, stack).run()
    except HeadraceError as error:
        _report(spec, control, error)
        raise
    finally:
        control.close(linger_s=1.0)


def _report(spec: LaunchSpec, control: ControlSocket, error: HeadraceError) -> None:
    control.send(
        spec.supervisor,
        Failed(
            replica=spec.replica,
            rank=spec.rank,
            error=str(error),
            is_user_error=isinstance(error, UserError),
        ),
    )


def _open(spec: LaunchSpec, control: ControlSocket, stack: ExitStack) -> Loop:
    parts = _open_parts(spec, control, stack)
    loop = _prefill(parts, stack) if spec.role is Role.PREFILL else _decode(parts, stack)
    control.send(
        spec.supervisor,
        Ready(
            replica=spec.replica,
            info=_info(spec),
            num_blocks=parts.layout.num_blocks,
            block_size=parts.layout.block_size,
            max_tokens=parts.loaded.max_model_tokens,
        ),
    )
    return loop


def _open_parts(spec: LaunchSpec, control: ControlSocket, stack: ExitStack) -> _Parts:
    group = _open_group(spec)
    stack.callback(group.close)

    def on_progress(done: int, total: int) -> None:
        control.send(
            spec.supervisor,
            LoadProgress(
                replica=spec.replica, rank=spec.rank, done_bytes=done, total_bytes=total
            ),
        )

    loaded = load_backend(spec, group, on_progress)
    layout = make_layout(
        spec.engine,
        loaded.backend.schemas,
        heads=loaded.heads,
        max_model_tokens=loaded.max_model_tokens,
    )
    transfer = TransferEngine(_transport(spec), rank=spec.rank, generation=spec.generation)
    transfer.open()
    stack.callback(transfer.close)
    region, descriptor = transfer.allocate(layout)
    stack.callback(region.close)
    loaded.backend.attach(
        region.buffer, num_blocks=layout.num_blocks, block_size=layout.block_size
    )
    stack.callback(loaded.backend.close)
    return _Parts(
        spec=spec,
        control=control,
        group=group,
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
    )


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


def _transport(spec: LaunchSpec) -> ShmTransport:
    return ShmTransport(
        deployment_id=spec.deployment_id,
        owner=spec.name,
        rank=spec.rank,
        generation=spec.generation,
        run_dir=Path(spec.run_dir),
        key=bytes.fromhex(spec.key),
    )


def _info(spec: LaunchSpec) -> RankInfo:
    return RankInfo(rank=spec.rank, generation=spec.generation, address=spec.address)


# -- decode and mono -------------------------------------------------------------------------


def _decode(parts: _Parts, stack: ExitStack) -> DecodeLoop:
    spec, clock = parts.spec, SystemClock()
    receiving = None
    if spec.role is Role.DECODE:
        receiving = Receiving(
            engine=parts.transfer,
            region=parts.descriptor,
            name=f"{spec.name}.{spec.generation}",
            address=spec.address,
            send=parts.control.send,
            clock=clock,
            timeout_s=spec.engine.session_timeout_s,
        )
    rank = DecodeRank(
        config=spec.engine,
        pool=parts.pool,
        stepper=Stepper(parts.loaded.backend),
        receiving=receiving,
        emitter=Emitter(
            rank=spec.rank,
            eos_token_ids=parts.loaded.eos_token_ids,
            max_model_tokens=parts.loaded.max_model_tokens,
            send=parts.control.send,
        ),
        tokenizer=Tokenizer.open(parts.loaded.tokenizer_folder),
        clock=clock,
        limits=Limits(
            max_model_tokens=parts.loaded.max_model_tokens,
            num_blocks=parts.layout.num_blocks,
            block_size=parts.layout.block_size,
            max_sequences=spec.engine.max_sequences,
        ),
    )
    _open_pulse(parts, stack, observe=lambda: _decode_beat(parts, rank, receiving))
    return DecodeLoop(
        rank=rank,
        control=parts.control,
        lockstep=Lockstep(parts.group, lambda step: parts.tell_peers(Wake(step=step))),
        receiving=receiving,
        engine=parts.transfer if receiving is not None else None,
        pool=parts.pool,
        clock=clock,
    )


def _decode_beat(parts: _Parts, rank: DecodeRank, receiving: Receiving | None) -> Heartbeat:
    counters = rank.counters
    received = receiving.bytes_received if receiving is not None else 0
    return Heartbeat(
        replica=parts.spec.replica,
        info=_info(parts.spec),
        progress=counters.steps + counters.ended + received,
        has_work=rank.has_work,
        num_running=rank.roster.num_holding(),
        num_waiting=rank.num_waiting,
        free_blocks=parts.pool.num_free,
        total_blocks=parts.layout.num_blocks,
        counters={
            "headrace_steps_total": counters.steps,
            "headrace_local_prefills_total": counters.local_prefills,
            "headrace_preemptions_total": counters.preemptions,
            "headrace_sequences_ended_total": counters.ended,
            "headrace_received_bytes_total": received,
        },
    )


# -- prefill ---------------------------------------------------------------------------------


def _prefill(parts: _Parts, stack: ExitStack) -> PrefillLoop:
    spec = parts.spec
    worker = PrefillWorker(
        backend=parts.loaded.backend,
        senders=SendSessions(
            parts.transfer,
            region=parts.region,
            sources=_source_layouts(parts),
            rank=spec.rank,
            generation=spec.generation,
            lead_address=parts.peer_address(0),
        ),
        send=parts.control.send,
    )
    lead = None
    if spec.rank == 0:
        lead = PrefillLead(
            config=spec.engine,
            worker=worker,
            pool=parts.pool,
            num_ranks=spec.sharding.num_ranks,
            generation=spec.generation,
            tell_followers=parts.tell_peers,
            send=parts.control.send,
            clock=SystemClock(),
        )
    _open_pulse(
        parts,
        stack,
        observe=lambda: _prefill_beat(parts, worker, lead),
        listeners=lambda: tuple(worker.peers),
    )
    return PrefillLoop(worker=worker, lead=lead, control=parts.control, engine=parts.transfer)


def _source_layouts(parts: _Parts) -> list[CacheLayout]:
    """Layouts of all ranks of the replica: equal but for the heads held."""
    tp = parts.spec.sharding.tp
    total = parts.layout.layers[0].num_kv_heads
    held = [split_range(total, tp, rank) for rank in range(tp)]
    return [
        msgspec.structs.replace(parts.layout, first_head=heads.start, num_heads=len(heads))
        for heads in held
    ]


def _prefill_beat(parts: _Parts, worker: PrefillWorker, lead: PrefillLead | None) -> Heartbeat:
    return Heartbeat(
        replica=parts.spec.replica,
        info=_info(parts.spec),
        progress=worker.steps + (lead.ended if lead is not None else 0),
        has_work=lead.has_work if lead is not None else False,
        num_running=lead.num_running if lead is not None else worker.num_sessions,
        num_waiting=lead.num_waiting if lead is not None else 0,
        free_blocks=parts.pool.num_free,
        total_blocks=parts.layout.num_blocks,
        counters={"headrace_steps_total": worker.steps},
    )


def _open_pulse(
    parts: _Parts,
    stack: ExitStack,
    *,
    observe: object,
    listeners: object = tuple,
) -> None:
    spec = parts.spec
    pulse = Pulse(
        address=spec.address.removesuffix(".ctl") + ".pulse",
        codec=Codec(bytes.fromhex(spec.key)),
        interval_s=spec.engine.heartbeat_s,
        observe=observe,
        listeners=lambda: (spec.supervisor, *listeners()),
    )
    pulse.open()
    stack.callback(pulse.close)
