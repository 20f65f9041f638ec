"""Tensors of the files against parameters of the model: each used once, each filled once.

Works on names, shapes and types alone: a folder is refused before any weight is read. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.core.errors import CheckpointError
from headrace.models.checkpoint.headers import TensorHeader
from headrace.models.checkpoint.names import Kind, Part, Place, place, quantization_of
from headrace.models.slices import Bounds, ParameterSpec

READABLE_DTYPES = ("BF16", "F16", "F32")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One tensor and the box of its parameter that it fills.

    Attributes:
        header: The tensor.
        box: Bounds per axis of the parameter, in the parameter's own coordinates.
    """

    header: TensorHeader
    box: tuple[Bounds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Every tensor of a folder, by what becomes of it.

    Attributes:
        sources: Canonical parameter name to its tensors, in the order of the expert index.
        ignored: Tensors that are recomputed from the config.
        mtp: Tensors of draft layers, skipped.
        tied_head: A head saved although the config ties it to the embedding, or None.
    """

    sources: Mapping[str, tuple[Source, ...]]
    ignored: tuple[TensorHeader, ...]
    mtp: tuple[TensorHeader, ...]
    tied_head: TensorHeader | None


@dataclass(slots=True)
class _Sorting:
    filled: dict[str, dict[tuple[int, Part], Source]] = field(default_factory=dict)
    ignored: list[TensorHeader] = field(default_factory=list)
    mtp: list[TensorHeader] = field(default_factory=list)
    tied_head: TensorHeader | None = None


def match(tensors: Iterable[TensorHeader], specs: Iterable[ParameterSpec]) -> Matched:
    """Give every tensor its place, or refuse the folder.

    Args:
        tensors: All tensors of the weight files.
        specs: All parameters of the model (slices do not matter here).

    Raises:
        CheckpointError: A quantized tensor (names the scheme), a tensor no parameter wants, two
            tensors for one place, a shape or type that is not the config's, or a parameter left
            without a tensor.
    """
    wanted = {spec.name: spec for spec in specs}
    sorting = _Sorting()
    for tensor in tensors:
        where = place(tensor.name)
        if where.kind is Kind.MTP:
            sorting.mtp.append(tensor)
        elif where.kind is Kind.IGNORABLE:
            sorting.ignored.append(tensor)
        else:
            _sort_parameter(tensor, where, wanted=wanted, sorting=sorting)
    for name, spec in wanted.items():
        _check_filled(spec, sorting.filled.get(name, {}))
    return Matched(
        sources={
            name: tuple(source for _, source in sorted(parts.items(), key=_by_expert))
            for name, parts in sorting.filled.items()
        },
        ignored=tuple(sorting.ignored),
        mtp=tuple(sorting.mtp),
        tied_head=sorting.tied_head,
    )


def _by_expert(entry: tuple[tuple[int, Part], Source]) -> tuple[int, int]:
    (expert, _), source = entry
    return expert, source.header.offset


def _sort_parameter(
    tensor: TensorHeader, where: Place, *, wanted: dict[str, ParameterSpec], sorting: _Sorting
) -> None:
    _refuse_quantized(tensor)
    spec = wanted.get(where.parameter)
    if spec is None and where.parameter == HEAD and EMBEDDING in wanted:
        _check_tensor(tensor, wanted[EMBEDDING].shape)
        sorting.tied_head = tensor
        return
    if spec is None:
        raise CheckpointError(
            f"{tensor.path}: {tensor.name}: no parameter of this model by config.json: "
            f"expected every tensor to be used; config and weights are of different models"
        )
    box = _box(tensor, where, spec)
    parts = sorting.filled.setdefault(spec.name, {})
    twin = parts.get((where.expert, where.part)) or (
        next(iter(parts.values()), None) if _mixes_forms(where, parts) else None
    )
    if twin is not None:
        raise CheckpointError(
            f"{tensor.path}: {tensor.name} fills {spec.name}, which {twin.header.name} in "
            f"{twin.header.path.name} fills already: expected every parameter once; remove one"
        )
    parts[where.expert, where.part] = Source(header=tensor, box=box)


def _mixes_forms(where: Place, parts: dict[tuple[int, Part], Source]) -> bool:
    is_fused = any(part is Part.WHOLE for _, part in parts)
    return bool(parts) and is_fused != (where.part is Part.WHOLE)


def _refuse_quantized(tensor: TensorHeader) -> None:
    scheme = quantization_of(tensor.name, tensor.dtype)
    if scheme:
        raise CheckpointError(
            f"{tensor.path}: {tensor.name} ({tensor.dtype}) belongs to a quantized checkpoint "
            f"({scheme}), which is not here yet: use the bfloat16 or float32 release"
        )


def _box(tensor: TensorHeader, where: Place, spec: ParameterSpec) -> tuple[Bounds, ...]:
    whole = tuple((0, size) for size in spec.shape)
    if where.part is Part.WHOLE:
        _check_tensor(tensor, spec.shape)
        return whole
    num_experts, rows, columns = spec.shape
    if where.expert >= num_experts:
        raise CheckpointError(
            f"{tensor.path}: {tensor.name}: config.json has {num_experts} experts (0 to "
            f"{num_experts - 1}): config and weights are of different models"
        )
    one = (where.expert, where.expert + 1)
    if where.part is Part.DOWN:
        _check_tensor(tensor, (rows, columns))
        return (one, *whole[1:])
    half = rows // 2
    _check_tensor(tensor, (half, columns))
    return (one, (0, half) if where.part is Part.GATE else (half, rows), whole[2])


def _check_tensor(tensor: TensorHeader, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise CheckpointError(
            f"{tensor.path}: {tensor.name}: expected shape {list(shape)} by config.json, came "
            f"{list(tensor.shape)}: config and weights are of different models"
        )
    if tensor.dtype not in READABLE_DTYPES:
        raise CheckpointError(
            f"{tensor.path}: {tensor.name}: expected {', '.join(READABLE_DTYPES)}, came "
            f"{tensor.dtype}: convert the checkpoint"
        )


def _check_filled(spec: ParameterSpec, parts: dict[tuple[int, Part], Source]) -> None:
    if any(part is Part.WHOLE for _, part in parts):
        return
    if not spec.name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        raise CheckpointError(
            f"{spec.name} is in none of the files: expected shape {list(spec.shape)} by "
            f"config.json{_missing_hint(spec.name)}; a file or its tensor is missing"
        )
    is_down = spec.name.endswith("down_proj")
    for expert in range(spec.shape[0]):
        for part in (Part.DOWN,) if is_down else (Part.GATE, Part.UP):
            if (expert, part) not in parts:
                stem = spec.name.rpartition(".")[0]
                raise CheckpointError(
                    f"{stem}.{expert}.{part.value}_proj.weight (or the fused {spec.name}) is in "
                    f"none of the files: expected {spec.shape[0]} experts by config.json; a file "
                    f"or its tensor is missing"
                )


def _missing_hint(name: str) -> str:
    return " (tie_word_embeddings is false)" if name == HEAD else ""
