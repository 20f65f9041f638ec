"""What a deployment needs of the machine, computed from its configuration and the model's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.cli.source import REPLAY, ModelSource
from headrace.cluster.doctor.finding import Needs
from headrace.comm.segment import segment_bytes
from headrace.core.addresses import parse_address
from headrace.core.launch import LaunchSpec
from headrace.core.layouts import MODEL_ITEM_BYTES
from headrace.core.sharding import Role, split_range
from headrace.deployment import DeploymentConfig, check_shardings, launch_specs
from headrace.engine.memory import make_layout
from headrace.models.config import ModelConfig
from headrace.models.slices import weight_slices

# Every file that a rank makes in the run folder is its name, its generation and one of these; three
# digits leave room for a generation that restarts have counted up.
_LONGEST_SUFFIX = ".999.pulse.ctl"


def needs_of(config: DeploymentConfig, source: ModelSource) -> Needs:
    """Return what the deployment asks of this machine.

    Raises:
        UserError: The model cannot be split so, or a pool could not hold a block.
    """
    check_shardings(config, source.config)
    everywhere = launch_specs(
        config,
        deployment_id="",
        run_dir="",
        key="",
        supervisor="",
        model=source.launch,
        is_moe=source.is_moe,
    )
    specs = [spec for spec in everywhere if spec.replica not in config.places]
    serving = config.serving
    is_replay = source.launch.startswith(REPLAY)
    return Needs(
        host=serving.host,
        port=serving.port,
        has_keys=bool(serving.api_keys),
        max_requests=serving.max_requests,
        transport=config.transport,
        num_ranks=len(specs),
        largest_replica=max((spec.sharding.num_ranks for spec in specs), default=0),
        weight_bytes=0 if is_replay else sum(_weight_bytes(s, source.config) for s in specs),
        kv_bytes=sum(_kv_bytes(spec, source.config, is_replay=is_replay) for spec in specs),
        group_bytes=_group_bytes(specs),
        longest_name=max((len(f"{spec.name}{_LONGEST_SUFFIX}") for spec in specs), default=0),
        peers=_agents(config),
    )


def _agents(config: DeploymentConfig) -> tuple[tuple[str, int], ...]:
    """Return where the agents listen whose hosts run a replica, in order of the hosts' names."""
    used = set(config.places.values())
    return tuple(
        parse_address(address, where=f"hosts.{name}")
        for name, address in sorted(config.hosts.items())
        if name in used
    )


def _weight_bytes(spec: LaunchSpec, model: ModelConfig) -> int:
    """Bytes of one rank's weights: exact mode multiplies with fp32 copies."""
    parameters = sum(
        math.prod(each.local_shape)
        for each in weight_slices(model, spec.sharding, spec.role, rank=spec.rank)
    )
    dtype = "float32" if spec.engine.exact else spec.engine.resolve_dtype(model.dtype)
    return parameters * MODEL_ITEM_BYTES[dtype]


def _kv_bytes(spec: LaunchSpec, model: ModelConfig, *, is_replay: bool) -> int:
    parts = (spec.sharding.tp, spec.rank) if spec.role is Role.PREFILL else (1, 0)
    limit = spec.engine.max_model_tokens
    dtype = "float32" if is_replay else spec.engine.resolve_dtype(model.dtype)
    return make_layout(
        spec.engine,
        model.cache_schema(dtype),
        heads=split_range(model.num_kv_heads, *parts),
        max_model_tokens=min(limit, model.max_positions) if limit else model.max_positions,
    ).num_bytes


def _group_bytes(specs: Sequence[LaunchSpec]) -> int:
    sizes = {spec.replica: spec.sharding.num_ranks for spec in specs}
    return sum(segment_bytes(size) for size in sizes.values() if size > 1)
