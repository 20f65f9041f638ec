"""What an engine's test world is made of: a model's shape, a clock, back ends and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.layouts import CacheLayout, KvSchema
from headrace.engine.prefill import PrefillWorker
from headrace.engine.replay import ReplayBackend, Script
from headrace.transfer.engine import TransferEngine
from headrace.transfer.sender import SendSessions

NUM_KV_HEADS = 4
SCHEMAS = (KvSchema(num_kv_heads=NUM_KV_HEADS, head_dim=2, dtype="float32"),) * 2
VOCAB_SIZE = 261
EOS = 258


class ManualClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


def make_backend(
    layout: CacheLayout,
    buffer: memoryview,
    scripts: Sequence[Script],
    *,
    kind: type[ReplayBackend] = ReplayBackend,
) -> ReplayBackend:
    """Return a replay back end attached to a region."""
    backend = kind(
        scripts,
        vocab_size=VOCAB_SIZE,
        eos_token_id=EOS,
        schemas=layout.layers,
        heads=layout.heads,
    )
    backend.attach(buffer, num_blocks=layout.num_blocks, block_size=layout.block_size)
    return backend


def minted(name: str, generation: int) -> str:
    """Return a name that no other generation has; the first has the plain one."""
    return name if generation == 1 else f"{name}.{generation}"


@dataclass(slots=True)
class PrefillRank:
    """One rank of the prefill replica."""

    transfer: TransferEngine
    worker: PrefillWorker
    senders: SendSessions
