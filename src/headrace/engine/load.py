"""Builds the backend of a rank from its launch spec: a model's weights, or a replay script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.comm.group import Group
from headrace.core.launch import LaunchSpec
from headrace.core.sharding import Role, check_sharding, split_range
from headrace.engine.backend import Backend
from headrace.engine.device.load import budget_bytes, load_device
from headrace.engine.model_backend import ModelBackend, load_model
from headrace.engine.replay import PREFIX, ReplayBackend, load_scripts
from headrace.models.checkpoint.folder import read_config, read_eos_token_ids
from headrace.models.config import ModelConfig
from headrace.models.embedded import embedded_folder

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A rank's backend and what the rank must know of the model besides.

    Attributes:
        backend: Runs the steps.
        heads: KV heads that this rank holds.
        tokenizer_folder: Where the tokenizer lies.
        eos_token_ids: Tokens that end a sequence.
        max_model_tokens: Longest prompt + output [tokens].
        free_bytes: What a device has for the KV pool; 0 on a CPU.
    """

    backend: Backend
    heads: range
    tokenizer_folder: Path
    eos_token_ids: tuple[int, ...]
    max_model_tokens: int
    free_bytes: int = 0


def load_backend(spec: LaunchSpec, group: Group, on_progress: OnProgress) -> Loaded:
    """Read what the rank needs of its model.

    Raises:
        UserError: A folder, script or sharding that cannot be; one clear line.
    """
    is_replay = spec.model.startswith(PREFIX)
    folder = Path(spec.tokenizer or (embedded_folder() if is_replay else spec.model))
    config = read_config(folder)
    check_sharding(
        spec.sharding,
        spec.role,
        num_kv_heads=config.num_kv_heads,
        num_experts=config.num_experts,
    )
    parts = (spec.sharding.tp, spec.rank) if spec.role is Role.PREFILL else (1, 0)
    heads = split_range(config.num_kv_heads, *parts)
    limit = spec.engine.max_model_tokens
    max_model_tokens = min(limit, config.max_positions) if limit else config.max_positions
    eos_token_ids = read_eos_token_ids(folder, config)
    backend: Backend
    free_bytes = 0
    if is_replay:
        backend = _replay(spec, config, heads=heads, eos_token_ids=eos_token_ids)
    elif spec.engine.device != "cpu":
        backend = load_device(
            folder, config, spec.engine, max_tokens=max_model_tokens, on_progress=on_progress
        )
        free_bytes = budget_bytes(backend, spec.engine)
    else:
        model = load_model(folder, config, spec=spec, group=group, on_progress=on_progress)
        backend = ModelBackend(model, config, heads=heads)
    return Loaded(
        backend=backend,
        heads=heads,
        tokenizer_folder=folder,
        eos_token_ids=eos_token_ids,
        max_model_tokens=max_model_tokens,
        free_bytes=free_bytes,
    )


def _replay(
    spec: LaunchSpec, config: ModelConfig, *, heads: range, eos_token_ids: tuple[int, ...]
) -> ReplayBackend:
    return ReplayBackend(
        load_scripts(Path(spec.model.removeprefix(PREFIX)), vocab_size=config.vocab_size),
        vocab_size=config.vocab_size,
        eos_token_id=eos_token_ids[0],
        # Ids up to 2**24 are whole numbers in float32: a wrong transfer shows.
        schemas=config.cache_schema("float32"),
        heads=heads,
    )
