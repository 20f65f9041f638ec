"""Puts a prefill rank together from its parts."""

from __future__ import annotations

from contextlib import ExitStack

import msgspec

from headrace.core.clock import SystemClock
from headrace.core.layouts import CacheLayout
from headrace.core.messages import Heartbeat
from headrace.core.sharding import split_range
from headrace.engine.loops import PrefillLoop
from headrace.engine.orders import Orders
from headrace.engine.parts import Parts
from headrace.engine.prefill import PrefillLead, PrefillWorker
from headrace.engine.prefill_gate import PrefillGate
from headrace.engine.rank_counters import part_counters
from headrace.transfer.sender import SendSessions


def build_prefill(parts: Parts, stack: ExitStack) -> PrefillLoop:
    """Return the loop of a prefill rank; what it opened closes with ``stack``."""
    spec, layouts = parts.spec, source_layouts(parts.layout, parts.spec.sharding.tp)
    assert parts.region is not None, "a prefill rank sends from a region"
    worker = PrefillWorker(
        backend=parts.loaded.backend,
        senders=SendSessions(
            parts.transfer,
            region=parts.region,
            sources=layouts,
            rank=spec.rank,
            generation=spec.generation,
            lead_address=parts.peer_address(0),
        ),
        send=parts.control.send,
        flight=parts.flight,
    )
    lead = None
    if spec.rank == 0:
        lead = PrefillLead(
            config=spec.engine,
            worker=worker,
            pool=parts.pool,
            gate=PrefillGate(
                layouts=layouts,
                vocab_size=parts.loaded.backend.vocab_size,
                max_model_tokens=parts.loaded.max_model_tokens,
            ),
            num_ranks=spec.sharding.num_ranks,
            generation=spec.generation,
            tell_followers=parts.tell_peers,
            send=parts.control.send,
            clock=SystemClock(),
        )
    parts.open_pulse(
        stack,
        observe=lambda: _prefill_beat(parts, worker, lead),
        listeners=lambda: worker.peers | (lead.waiting_peers if lead is not None else set()),
    )
    return PrefillLoop(
        worker=worker,
        lead=lead,
        orders=Orders(spec.generation),
        control=parts.control,
        engine=parts.transfer,
        flight=parts.flight_log(),
    )


def source_layouts(layout: CacheLayout, tp_size: int) -> list[CacheLayout]:
    """Return the layouts of all ranks of a replica: equal to ``layout`` but for the heads held."""
    total = layout.layers[0].num_kv_heads
    held = [split_range(total, tp_size, rank) for rank in range(tp_size)]
    return [
        msgspec.structs.replace(layout, first_head=heads.start, num_heads=len(heads))
        for heads in held
    ]


def _prefill_beat(parts: Parts, worker: PrefillWorker, lead: PrefillLead | None) -> Heartbeat:
    return Heartbeat(
        replica=parts.spec.replica,
        info=parts.info,
        progress=worker.steps + (lead.ended if lead is not None else 0),
        has_work=lead.has_work if lead is not None else False,
        num_running=lead.num_running if lead is not None else worker.num_sessions,
        num_waiting=lead.num_waiting if lead is not None else 0,
        free_blocks=parts.pool.num_free,
        total_blocks=parts.layout.num_blocks,
        counters={**part_counters(parts), "headrace_steps_total": worker.steps},
    )
