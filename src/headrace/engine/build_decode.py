"""Puts a decode or mono rank together from its parts."""

from __future__ import annotations

from contextlib import ExitStack

from headrace.core.clock import SystemClock
from headrace.core.messages import Heartbeat, Wake
from headrace.core.sharding import Role
from headrace.engine.decode import DecodeRank
from headrace.engine.device.backend import DeviceBackend
from headrace.engine.device.stepper import DeviceStepper
from headrace.engine.device.streams import open_track
from headrace.engine.emitter import Emitter
from headrace.engine.lockstep import Lockstep
from headrace.engine.loops import DecodeLoop
from headrace.engine.orders import Orders
from headrace.engine.parts import Parts
from headrace.engine.rank_counters import decode_counters, part_counters
from headrace.engine.receiving import Receiving
from headrace.engine.stepper import AnyStepper, Stepper
from headrace.scheduler.admission import Limits
from headrace.text.tokenizer import Tokenizer


def build_decode(parts: Parts, stack: ExitStack) -> DecodeLoop:
    """Return the loop of a decode or mono rank; what it opened closes with ``stack``."""
    spec, clock = parts.spec, SystemClock()
    receiving, flight = None, parts.flight_log()
    if spec.role is Role.DECODE:
        assert parts.descriptor is not None, "a decode rank receives into a region"
        receiving = Receiving(
            engine=parts.transfer,
            region=parts.descriptor,
            name=f"{spec.name}.{spec.generation}",
            address=parts.info.address,
            send=parts.control.send,
            clock=clock,
            timeout_s=spec.engine.session_timeout_s,
            flight=parts.flight,
            on_deadline=flight.session_late,
        )
        flight.sessions = receiving.waits
    rank = DecodeRank(
        config=spec.engine,
        pool=parts.pool,
        stepper=_make_stepper(parts, stack),
        receiving=receiving,
        emitter=_make_emitter(parts),
        tokenizer=Tokenizer.open(parts.loaded.tokenizer_folder),
        clock=clock,
        limits=Limits(
            max_model_tokens=parts.loaded.max_model_tokens,
            num_blocks=parts.layout.num_blocks,
            block_size=parts.layout.block_size,
            max_sequences=spec.engine.max_sequences,
        ),
    )
    parts.open_pulse(stack, observe=lambda: _decode_beat(parts, rank, receiving))
    return DecodeLoop(
        rank=rank,
        orders=Orders(spec.generation),
        control=parts.control,
        lockstep=_lockstep(parts),
        receiving=receiving,
        engine=parts.transfer if receiving is not None else None,
        pool=parts.pool,
        clock=clock,
        flight=flight,
    )


def _make_stepper(parts: Parts, stack: ExitStack) -> AnyStepper:
    backend, engine = parts.loaded.backend, parts.spec.engine
    if not isinstance(backend, DeviceBackend):
        return Stepper(backend, flight=parts.flight)
    stepper = DeviceStepper(
        backend,
        max_rows=engine.max_sequences,
        max_tokens=parts.loaded.max_model_tokens,
        track=open_track(
            backend.device,
            overlaps=engine.overlap_prefill,
            max_step_tokens=engine.max_step_tokens,
        ),
    )
    # Before the pool goes, which is on the stack already.
    stack.callback(stepper.close)
    stepper.warm_up()
    return stepper


def _make_emitter(parts: Parts) -> Emitter:
    return Emitter(
        rank=parts.spec.rank,
        replica=parts.spec.replica,
        eos_token_ids=parts.loaded.eos_token_ids,
        max_model_tokens=parts.loaded.max_model_tokens,
        send=parts.control.send,
    )


def _lockstep(parts: Parts) -> Lockstep:
    return Lockstep(
        parts.group, lambda step: parts.tell_peers(Wake(step=step)), flight=parts.flight
    )


def _decode_beat(parts: Parts, rank: DecodeRank, receiving: Receiving | None) -> Heartbeat:
    counters = rank.counters
    received = receiving.bytes_received if receiving is not None else 0
    return Heartbeat(
        replica=parts.spec.replica,
        info=parts.info,
        progress=counters.steps + counters.ended + received,
        has_work=rank.has_work,
        num_running=rank.roster.num_holding(),
        num_waiting=rank.num_waiting,
        free_blocks=parts.pool.num_free,
        total_blocks=parts.layout.num_blocks,
        counters={**part_counters(parts), **decode_counters(counters, receiving)},
    )
