"""How many blocks a rank's KV pool has: the same on every rank of a replica, by construction."""

from __future__ import annotations

from headrace.core.errors import ConfigError
from headrace.core.launch import EngineConfig
from headrace.core.layouts import CacheLayout, KvSchema

MIB = 1 << 20
DEFAULT_CAP_MIB = 256


def make_layout(
    config: EngineConfig,
    schemas: tuple[KvSchema, ...],
    *,
    heads: range,
    max_model_tokens: int,
    cap_bytes: int = 0,
) -> CacheLayout:
    """Lay out a rank's pool.

    Args:
        config: ``kv_cache_mib`` decides the size; 0 takes ``max_sequences`` full contexts,
            capped at ``DEFAULT_CAP_MIB``.
        schemas: KV of each layer.
        heads: KV heads that the rank holds.
        max_model_tokens: Longest prompt + output [tokens].
        cap_bytes: What a device has to give; 0 stands for the cap of a CPU rank.

    Raises:
        ConfigError: The pool could not hold a single block.
    """
    one_block = CacheLayout(
        layers=schemas,
        first_head=heads.start,
        num_heads=len(heads),
        num_blocks=1,
        block_size=config.block_size,
    )
    mib = config.kv_cache_mib or cap_bytes // MIB or DEFAULT_CAP_MIB
    num_blocks = mib * MIB // one_block.num_bytes
    if not config.kv_cache_mib:
        contexts = config.max_sequences * -(-max_model_tokens // config.block_size)
        num_blocks = min(num_blocks, contexts)
    if num_blocks < 1:
        raise ConfigError(
            f"kv_cache_mib={mib}: one block of {config.block_size} tokens takes "
            f"{one_block.num_bytes} bytes here; give at least {-(-one_block.num_bytes // MIB)}"
        )
    return CacheLayout(
        layers=schemas,
        first_head=heads.start,
        num_heads=len(heads),
        num_blocks=num_blocks,
        block_size=config.block_size,
    )
