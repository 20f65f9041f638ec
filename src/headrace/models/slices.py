"""Every parameter of a model by its canonical name, and which slice of it one rank reads.

Pure: the loader uses it to read only a rank's own bytes and to know what is missing or left over.
Names are the released ones without a ``model.language_model.`` prefix; experts are fused,
``[E, 2I, H]`` with the gate's rows first, then the up projection's. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.sharding import Role, Sharding
from headrace.models.config import ModelConfig
from headrace.models.shard import ModelShard, shard_of

Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One canonical parameter and this rank's part of it.

    Attributes:
        name: Canonical name, e.g. ``model.layers.0.self_attn.q_proj.weight``.
        shape: Shape of the whole parameter.
        slices: This rank's part as ``(axis, ((start, stop), ...))``: the runs are read in order
            and joined along the axis. An axis not named is read whole. Fused gate and up rows are
            two runs of one axis.
    """

    name: str
    shape: tuple[int, ...]
    slices: tuple[tuple[int, tuple[Bounds, ...]], ...] = ()

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part."""
        shape = list(self.shape)
        for axis, runs in self.slices:
            shape[axis] = sum(stop - start for start, stop in runs)
        return tuple(shape)


def weight_slices(
    config: ModelConfig, sharding: Sharding, role: Role, *, rank: int
) -> tuple[ParameterSpec, ...]:
    """Return every parameter of the model, in layer order, with this rank's slices.

    A tied head has no parameter of its own: a checkpoint's ``lm_head.weight`` is then a copy of
    the embedding that the loader may skip.

    Raises:
        ShardingError: As ``shard_of``.
    """
    shard = shard_of(config, sharding, role, rank=rank)
    return tuple(_parameters(config, shard))


def _parameters(config: ModelConfig, shard: ModelShard) -> Iterator[ParameterSpec]:
    hidden = config.hidden_size
    vocabulary = (config.vocab_size, hidden)
    yield ParameterSpec(name="model.embed_tokens.weight", shape=vocabulary)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        yield ParameterSpec(name=prefix + "input_layernorm.weight", shape=(hidden,))
        yield from _attention(config, shard, prefix + "self_attn.")
        yield ParameterSpec(name=prefix + "post_attention_layernorm.weight", shape=(hidden,))
        mlp = _experts if config.is_moe_layer(layer) else _dense_mlp
        yield from mlp(config, shard, prefix + "mlp.")
    yield ParameterSpec(name="model.norm.weight", shape=(hidden,))
    if not config.tie_word_embeddings:
        yield ParameterSpec(name="lm_head.weight", shape=vocabulary)


def _attention(config: ModelConfig, shard: ModelShard, prefix: str) -> Iterator[ParameterSpec]:
    hidden, dim = config.hidden_size, config.head_dim
    projections = (
        ("q_proj", config.num_heads, shard.q_heads),
        ("k_proj", config.num_kv_heads, shard.kv_heads),
        ("v_proj", config.num_kv_heads, shard.kv_heads),
    )
    for name, num_heads, heads in projections:
        rows = ((0, ((heads.start * dim, heads.stop * dim),)),)
        yield ParameterSpec(
            name=f"{prefix}{name}.weight", shape=(num_heads * dim, hidden), slices=rows
        )
        if config.attention_bias:
            yield ParameterSpec(name=f"{prefix}{name}.bias", shape=(num_heads * dim,), slices=rows)
    columns = ((shard.q_heads.start * dim, shard.q_heads.stop * dim),)
    yield ParameterSpec(
        name=prefix + "o_proj.weight",
        shape=(hidden, config.num_heads * dim),
        slices=((1, columns),),
    )
    if config.attention_bias:
        yield ParameterSpec(name=prefix + "o_proj.bias", shape=(hidden,))
    for name in ("q_norm", "k_norm"):
        yield ParameterSpec(name=f"{prefix}{name}.weight", shape=(dim,))


def _dense_mlp(config: ModelConfig, shard: ModelShard, prefix: str) -> Iterator[ParameterSpec]:
    hidden, width = config.hidden_size, config.intermediate_size
    columns = ((shard.dense_columns.start, shard.dense_columns.stop),)
    for name in ("gate_proj", "up_proj"):
        yield ParameterSpec(
            name=f"{prefix}{name}.weight", shape=(width, hidden), slices=((0, columns),)
        )
    yield ParameterSpec(
        name=prefix + "down_proj.weight", shape=(hidden, width), slices=((1, columns),)
    )


def _experts(config: ModelConfig, shard: ModelShard, prefix: str) -> Iterator[ParameterSpec]:
    hidden, width, num = config.hidden_size, config.moe_intermediate_size, config.num_experts
    experts = (0, ((shard.experts.start, shard.experts.stop),))
    start, stop = shard.expert_columns.start, shard.expert_columns.stop
    yield ParameterSpec(name=prefix + "gate.weight", shape=(num, hidden))
    yield ParameterSpec(
        name=prefix + "experts.gate_up_proj",
        shape=(num, 2 * width, hidden),
        slices=(experts, (1, ((start, stop), (width + start, width + stop)))),
    )
    yield ParameterSpec(
        name=prefix + "experts.down_proj",
        shape=(num, hidden, width),
        slices=(experts, (2, ((start, stop),))),
    )
