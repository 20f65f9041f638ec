"""A model folder on disk: which files there are, and its JSON files. Torch-free.

Left out: the tokenizer and the chat template, which ``headrace.text`` reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import CheckpointError
from headrace.models.checkpoint.headers import TensorHeader, read_headers
from headrace.models.config import ModelConfig, parse_config

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Beside the weights and outside the index: draft layers, which this build skips by name.
MTP_FILES = ("mtp.safetensors", "model_mtp.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """The tensors of a folder.

    Attributes:
        tensors: All tensors of the weight files, file by file.
        mtp: All tensors of separate draft-layer files.
    """

    tensors: tuple[TensorHeader, ...]
    mtp: tuple[TensorHeader, ...]


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object, or raise ``CheckpointError`` naming the file and the fault."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object, came {type(data).__name__}")
    return data


def read_config(folder: Path) -> ModelConfig:
    """Read and check ``config.json``.

    Raises:
        CheckpointError: No folder, no config, or a config that this build cannot serve.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder: give a folder with a config.json")
    path = folder / "config.json"
    return parse_config(read_json(path), where=str(path))


def read_eos_token_ids(folder: Path, config: ModelConfig) -> tuple[int, ...]:
    """Return the tokens that end a sequence: the generation config's, else the model config's.

    Raises:
        CheckpointError: ``generation_config.json`` is damaged or names ids outside the vocabulary.
    """
    path = folder / "generation_config.json"
    if not path.exists():
        return config.eos_token_ids
    value = read_json(path).get("eos_token_id")
    if value is None:
        return config.eos_token_ids
    ids = value if isinstance(value, list) else [value]
    for token in ids:
        if type(token) is not int or not 0 <= token < config.vocab_size:
            raise CheckpointError(
                f"{path}: eos_token_id={token!r}: expected ids under {config.vocab_size}"
            )
    return tuple(ids)


def read_weight_files(folder: Path) -> WeightFiles:
    """Read the headers of every weight file and check them against the index.

    Raises:
        CheckpointError: No weights, weights in another format, an index that disagrees with the
            files, a tensor in two files, a damaged file, or a weight file nobody names.
    """
    index_path, single_path = folder / INDEX_FILE, folder / SINGLE_FILE
    if index_path.exists() and single_path.exists():
        raise CheckpointError(
            f"{folder}: {SINGLE_FILE} and {INDEX_FILE} are both there: remove the one not meant"
        )
    if index_path.exists():
        weight_map = _weight_map(index_path)
        names = sorted(set(weight_map.values()))
        _check_present(folder, names, weight_map)
        tensors = _read_all(folder, names)
        _check_index(index_path, weight_map, tensors)
    elif single_path.exists():
        names = [SINGLE_FILE]
        tensors = _read_all(folder, names)
    else:
        raise CheckpointError(_no_weights(folder))
    extra = [n for n in MTP_FILES if n not in names and (folder / n).exists()]
    _check_strays(folder, {*names, *extra})
    return WeightFiles(tensors=tensors, mtp=_read_all(folder, extra))


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: expected a weight_map of tensor name to file name")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{path}: {name}: {file!r} is not a file name in the folder")
    return weight_map


def _check_present(folder: Path, names: list[str], weight_map: dict[str, str]) -> None:
    absent = [name for name in names if not (folder / name).exists()]
    if absent:
        num_tensors = sum(file in absent for file in weight_map.values())
        raise CheckpointError(
            f"{folder / INDEX_FILE}: names {absent[0]}, which is not in the folder "
            f"({len(absent)} of {len(names)} files and {num_tensors} tensors are missing): "
            f"download the missing files"
        )


def _read_all(folder: Path, names: list[str]) -> tuple[TensorHeader, ...]:
    tensors: dict[str, TensorHeader] = {}
    for name in names:
        for tensor in read_headers(folder / name):
            twin = tensors.get(tensor.name)
            if twin is not None:
                raise CheckpointError(
                    f"{folder}: {tensor.name} is in {twin.path.name} and in {name}: "
                    f"expected every tensor once; remove the stale file"
                )
            tensors[tensor.name] = tensor
    return tuple(tensors.values())


def _check_index(path: Path, weight_map: dict[str, str], tensors: tuple[TensorHeader, ...]) -> None:
    came = {tensor.name: tensor.path.name for tensor in tensors}
    for name, file in weight_map.items():
        if came.get(name) != file:
            where = f"it is in {came[name]}" if name in came else "no file holds it"
            raise CheckpointError(
                f"{path}: {name} should be in {file}, but {where}: index and files are of "
                f"different downloads"
            )
    for name, file in came.items():
        if name not in weight_map:
            raise CheckpointError(
                f"{path}: does not name {name}, which is in {file}: index and files are of "
                f"different downloads"
            )


def _check_strays(folder: Path, known: set[str]) -> None:
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in known:
            raise CheckpointError(
                f"{path}: a weight file that nothing names: expected only "
                f"{', '.join(sorted(known)[:3])}{', ...' if len(known) > 3 else ''}; remove it"
            )


def _no_weights(folder: Path) -> str:
    others = [p.name for p in sorted(folder.iterdir()) if p.suffix in (".bin", ".pt", ".gguf")]
    safetensors = [p.name for p in sorted(folder.glob("*.safetensors"))]
    if others and not safetensors:
        return f"{folder}: weights in {others[0]}: only safetensors are read; convert them"
    if safetensors:
        return (
            f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE}, came {safetensors[0]} alone: "
            f"download the index as well"
        )
    return f"{folder}: no weights: expected {SINGLE_FILE} or {INDEX_FILE} with its files"
