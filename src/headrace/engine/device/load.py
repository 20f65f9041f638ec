"""Getting a model onto a device, and finding out what memory it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from headrace.core.errors import ConfigError
from headrace.core.launch import EngineConfig
from headrace.core.layouts import CacheLayout
from headrace.core.sharding import Role, Sharding
from headrace.engine.backend import Row
from headrace.engine.device.backend import DeviceBackend
from headrace.kernels.site import detect_site
from headrace.models.checkpoint.load import load_weights
from headrace.models.config import ModelConfig
from headrace.models.device.decoder import DeviceDecoder
from headrace.models.device.kernels import model_sizes
from headrace.models.device.random import random_tensors
from headrace.models.device.weights import arrange_weights
from headrace.models.slices import weight_slices

# Of the memory that is free after a dry run; the rest is for graphs and what fragments.
KV_FRACTION = 0.9


def load_device(
    folder: Path,
    config: ModelConfig,
    engine: EngineConfig,
    *,
    max_tokens: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> DeviceBackend:
    """Load a whole model, parameter by parameter, or make a random one of its shape.

    Args:
        folder: Model folder; only its config is read for random weights.
        config: The model.
        engine: Device, dtype and load format.
        max_tokens: Longest prompt + output [tokens].
        on_progress: Called with (bytes read, bytes to read).

    Raises:
        UserError: No such device, or a folder that is not as its config promises.
    """
    name = engine.resolve_dtype(config.dtype)
    kv_dtype = engine.resolve_kv_dtype(config.dtype)
    site = detect_site(
        engine.device,
        dtype=name,
        kv_dtype=kv_dtype,
        sizes=model_sizes(config, block_size=engine.block_size),
    )
    dtype = getattr(torch, name)
    if engine.load_format == "random":
        tensors = random_tensors(config, dtype=dtype, device=engine.device)
    else:
        tensors = load_weights(
            folder,
            weight_slices(config, Sharding(), Role.MONO, rank=0),
            dtype=dtype,
            device=engine.device,
            on_progress=on_progress,
        )
    weights = arrange_weights(tensors, config, num_positions=max_tokens)
    return DeviceBackend(DeviceDecoder(config=config, weights=weights, kv_dtype=kv_dtype), site)


def budget_bytes(backend: DeviceBackend, engine: EngineConfig) -> int:
    """Return what the KV pool may take: what is free at the peak of a full prefill step, in part.

    The step is run for real, on a pool that is dropped again: kernels are compiled by it too.

    Raises:
        ConfigError: Nothing is free.
    """
    if backend.device.type != "cuda":
        return 0
    num_tokens = min(engine.max_step_tokens, len(backend.decoder.weights.rope.cos_PF))
    num_blocks = -(-num_tokens // engine.block_size)
    layout = CacheLayout(
        layers=backend.schemas,
        first_head=0,
        num_heads=backend.decoder.config.num_kv_heads,
        num_blocks=num_blocks,
        block_size=engine.block_size,
    )
    backend.allocate(layout)
    row = Row(token_ids=[0] * num_tokens, start=0, block_ids=range(num_blocks), wants_logits=True)
    torch.cuda.reset_peak_memory_stats()
    backend.run([row])
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - layout.num_bytes
    backend.close()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    budget = int((total - others - peak) * KV_FRACTION)
    if budget <= 0:
        raise ConfigError(
            f"the device has {total / 1e9:.1f} GB, of which weights and a prefill step of "
            f"{num_tokens} tokens take {peak / 1e9:.1f}: lower max_step_tokens, or take a "
            f"smaller model"
        )
    return budget
