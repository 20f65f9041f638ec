"""What a checkpoint's ``config.json`` says, in one spelling, checked once.

Spellings differ between releases and library versions (``num_experts`` or ``num_local_experts``,
``rope_theta`` with ``rope_scaling`` or ``rope_parameters``, ``torch_dtype`` or ``dtype``); all are
read here and nowhere else. Torch-free, so that a checker can read a config without a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.core.errors import CheckpointError
from headrace.core.layouts import MODEL_ITEM_BYTES, KvSchema

# Released architecture name -> model_type.
ARCHITECTURES = {"Qwen3MoeForCausalLM": "qwen3_moe", "Qwen3ForCausalLM": "qwen3"}

_DEFAULT_ROPE_THETA = 10000.0

# Ten times the deepest release: what is beyond is a damaged file, not a model.
MAX_LAYERS = 1000


class YarnConfig(Struct, frozen=True, kw_only=True):
    """YaRN context extension, as the checkpoint asks for it.

    Attributes:
        factor: Ratio of the extended to the original context.
        original_max_positions: Context the model was pretrained at [tokens].
        attention_factor: Multiplier of cos and sin; 0 derives it from ``factor``.
        beta_fast: Rotations above which a dimension keeps its frequency.
        beta_slow: Rotations below which a dimension is interpolated in full.
        mscale: Numerator weight of a derived attention factor; 0 when absent.
        mscale_all_dim: Denominator weight of a derived attention factor; 0 when absent.
        truncate: Round the corrected range to whole dimensions.
    """

    factor: float
    original_max_positions: int
    attention_factor: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


class ModelConfig(Struct, frozen=True, kw_only=True):
    """Architecture of one checkpoint.

    Attributes:
        architecture: ``qwen3_moe`` or ``qwen3``.
        vocab_size: Rows of the embedding [tokens].
        hidden_size: Width of the residual stream.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key/value heads; divides ``num_heads``.
        head_dim: Width of a head.
        intermediate_size: Width of a dense MLP.
        num_experts: Routed experts of a MoE layer; 0 in a dense model.
        top_k: Experts of a token; 0 in a dense model.
        moe_intermediate_size: Width of one expert; 0 in a dense model.
        norm_topk_prob: Renormalise the chosen experts' scores.
        dense_layers: Indices of layers with a dense MLP, ascending; all of them in a dense model.
        rms_norm_eps: Constant added to the mean square.
        rope_theta: Base of the rotary frequencies.
        yarn: Context extension, or None for plain RoPE.
        attention_bias: Biases on q, k, v and o projections.
        tie_word_embeddings: The head is the embedding.
        dtype: Element type of the checkpoint, as named in ``core.layouts.MODEL_ITEM_BYTES``.
        max_position_embeddings: Positions that the checkpoint claims [tokens].
        eos_token_ids: Tokens that end a sequence; may be empty (then only the generation config
            or the tokenizer can say).
        bos_token_id: Token that begins one, or None.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    num_experts: int = 0
    top_k: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False
    dense_layers: tuple[int, ...] = ()
    rms_norm_eps: float = 1e-6
    rope_theta: float = _DEFAULT_ROPE_THETA
    yarn: YarnConfig | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    dtype: str = "float32"
    max_position_embeddings: int = 32768
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @property
    def max_positions(self) -> int:
        """Longest context that the model takes, YaRN's extension included [tokens]."""
        if self.yarn is None:
            return self.max_position_embeddings
        extended = int(self.yarn.factor * self.yarn.original_max_positions)
        return max(self.max_position_embeddings, extended)

    def is_moe_layer(self, layer: int) -> bool:
        """Whether ``layer`` has routed experts."""
        return layer not in self.dense_layers

    def cache_schema(self, dtype: str = "") -> tuple[KvSchema, ...]:
        """KV of each layer; ``dtype`` overrides the checkpoint's."""
        schema = KvSchema(
            num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, dtype=dtype or self.dtype
        )
        return (schema,) * self.num_layers


def parse_config(data: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
    """Read a ``config.json`` object of any spelling.

    Args:
        data: The parsed JSON object; not modified.
        where: Name of the file for messages.

    Returns:
        The checked config.

    Raises:
        CheckpointError: Unsupported architecture, quantization, sliding window, activation or
            rope type, a missing or ill-typed key, or sizes that contradict each other.
    """
    reader = _Reader(data, where)
    architecture = _architecture(data, where)
    _refuse_unsupported(data, where)
    num_heads = reader.size("num_attention_heads")
    hidden_size = reader.size("hidden_size")
    max_positions = reader.size("max_position_embeddings", default=32768)
    theta, yarn = _rope(data, max_positions, where)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=reader.size("vocab_size"),
        hidden_size=hidden_size,
        num_layers=reader.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=reader.size("num_key_value_heads", default=num_heads),
        head_dim=reader.size("head_dim", default=_default_head_dim(architecture, data)),
        intermediate_size=reader.size("intermediate_size"),
        rms_norm_eps=reader.number("rms_norm_eps", default=1e-6),
        rope_theta=theta,
        yarn=yarn,
        attention_bias=reader.flag("attention_bias"),
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
        dtype=_dtype(data, where),
        max_position_embeddings=max_positions,
        eos_token_ids=_token_ids(data.get("eos_token_id"), where),
        bos_token_id=data.get("bos_token_id"),
        **_experts(reader, architecture),
    )
    _check_sizes(config, where)
    return config


class _Reader:
    """Typed access to JSON keys with one kind of message."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def size(self, *names: str, default: int | None = None) -> int:
        """Return the first of ``names`` present, a whole number of at least 1."""
        value = self._first(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"{self.where}: {names[0]}={value!r}: expected a whole number of at least 1"
            )
        return value

    def number(self, name: str, *, default: float) -> float:
        """Return a positive number."""
        value = self._first((name,), default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise CheckpointError(f"{self.where}: {name}={value!r}: expected a positive number")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a boolean, false when absent."""
        value = self._first((name,), False)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.where}: {name}={value!r}: expected true or false")
        return value

    def _first(self, names: tuple[str, ...], default: Any) -> Any:
        for name in names:
            if self.data.get(name) is not None:
                return self.data[name]
        if default is None:
            raise CheckpointError(
                f"{self.where}: key {' or '.join(names)} is missing; "
                f"the file is not a complete model config"
            )
        return default


def _default_head_dim(architecture: str, data: Mapping[str, Any]) -> int:
    # The dense family's default is a constant, the MoE family's the usual ratio.
    if architecture == "qwen3":
        return 128
    return max(1, int(data["hidden_size"]) // int(data["num_attention_heads"]))


def _architecture(data: Mapping[str, Any], where: str) -> str:
    supported = ", ".join(ARCHITECTURES)
    named = data.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    if "text_config" in data or "vision_config" in data:
        raise CheckpointError(
            f"{where}: {name or data.get('model_type')!r} nests a text model (text_config): "
            f"supported are the text-only {supported}"
        )
    if name is None:
        model_type = data.get("model_type")
        if model_type in ARCHITECTURES.values():
            return str(model_type)
        raise CheckpointError(f"{where}: model_type={model_type!r}: supported are {supported}")
    if name not in ARCHITECTURES:
        raise CheckpointError(f"{where}: architecture {name!r}: supported are {supported}")
    return ARCHITECTURES[name]


def _refuse_unsupported(data: Mapping[str, Any], where: str) -> None:
    quantization = data.get("quantization_config")
    if quantization:
        scheme = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        raise CheckpointError(
            f"{where}: the checkpoint is quantized ({scheme or 'unnamed scheme'}), which is not "
            f"here yet: use the unquantized (bfloat16 or float32) release"
        )
    layer_types = data.get("layer_types") or ()
    if data.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise CheckpointError(
            f"{where}: some layers do not attend to the whole context (sliding window or linear "
            f"attention): supported is full_attention in every layer"
        )
    if data.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{where}: hidden_act={data['hidden_act']!r}: supported is 'silu'")


def _experts(reader: _Reader, architecture: str) -> dict[str, Any]:
    num_layers = reader.size("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise CheckpointError(
            f"{reader.where}: num_hidden_layers={num_layers}: expected at most {MAX_LAYERS}"
        )
    if architecture == "qwen3":
        return {"dense_layers": tuple(range(num_layers))}
    step = reader.size("decoder_sparse_step", default=1)
    only = reader.data.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(isinstance(index, int) for index in only):
        raise CheckpointError(f"{reader.where}: mlp_only_layers={only!r}: expected layer indices")
    dense = (i for i in range(num_layers) if i in only or (i + 1) % step)
    return {
        "num_experts": reader.size("num_experts", "num_local_experts"),
        "top_k": reader.size("num_experts_per_tok"),
        "moe_intermediate_size": reader.size("moe_intermediate_size"),
        "norm_topk_prob": reader.flag("norm_topk_prob"),
        "dense_layers": tuple(dense),
    }


def _rope(
    data: Mapping[str, Any], max_positions: int, where: str
) -> tuple[float, YarnConfig | None]:
    scaling = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise CheckpointError(f"{where}: rope parameters {scaling!r}: expected an object")
    theta = scaling.get("rope_theta") or data.get("rope_theta") or _DEFAULT_ROPE_THETA
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    rotary = scaling.get("partial_rotary_factor") or data.get("partial_rotary_factor") or 1.0
    if kind not in ("default", "yarn") or rotary != 1.0:
        raise CheckpointError(
            f"{where}: rope type {kind!r} with partial_rotary_factor={rotary}: supported are "
            f"'default' and 'yarn' over the whole head"
        )
    if not isinstance(theta, int | float) or theta <= 0:
        raise CheckpointError(f"{where}: rope_theta={theta!r}: expected a positive number")
    return float(theta), _yarn(scaling, max_positions, where) if kind == "yarn" else None


def _yarn(scaling: Mapping[str, Any], max_positions: int, where: str) -> YarnConfig:
    reader = _Reader(scaling, f"{where} yarn")
    original = reader.size("original_max_position_embeddings", default=max_positions)
    return YarnConfig(
        factor=reader.number("factor", default=max_positions / original),
        original_max_positions=original,
        attention_factor=float(scaling.get("attention_factor") or 0.0),
        beta_fast=reader.number("beta_fast", default=32.0),
        beta_slow=reader.number("beta_slow", default=1.0),
        mscale=float(scaling.get("mscale") or 0.0),
        mscale_all_dim=float(scaling.get("mscale_all_dim") or 0.0),
        truncate=bool(scaling.get("truncate", True)),
    )


def _dtype(data: Mapping[str, Any], where: str) -> str:
    name = data.get("dtype") or data.get("torch_dtype") or "float32"
    name = str(name).removeprefix("torch.")
    if name not in MODEL_ITEM_BYTES:
        raise CheckpointError(
            f"{where}: dtype={name!r}: supported are {', '.join(MODEL_ITEM_BYTES)}"
        )
    return name


def _token_ids(value: Any, where: str) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise CheckpointError(f"{where}: eos_token_id={value!r}: expected a token id or a list")
    return tuple(ids)


def _check_sizes(config: ModelConfig, where: str) -> None:
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{where}: num_key_value_heads={config.num_kv_heads} does not divide "
            f"num_attention_heads={config.num_heads}"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"{where}: head_dim={config.head_dim}: RoPE needs an even width")
    if config.top_k > config.num_experts:
        raise CheckpointError(
            f"{where}: num_experts_per_tok={config.top_k} exceeds num_experts={config.num_experts}"
        )
    for token in config.eos_token_ids:
        if not 0 <= token < config.vocab_size:
            raise CheckpointError(
                f"{where}: eos_token_id={token} is outside the vocabulary of {config.vocab_size}"
            )
