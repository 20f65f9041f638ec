"""Headers of safetensors files: what lies where, without reading any weight. Torch-free.

A file is an 8-byte little-endian length, that many bytes of JSON, then the tensors' bytes. The
header is checked in full against the file's size, so that a file cut short by a broken download is
found before anything is mapped.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import CheckpointError

MAX_HEADER_BYTES = 100 << 20  # the format's own limit
_LFS_POINTER = b"version https://git-lfs"

# Bytes per element of every type that the format knows, readable by us or not.
DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """One tensor of one file.

    Attributes:
        name: As the file spells it.
        dtype: As the format spells it, e.g. ``BF16``.
        shape: Row-major shape.
        path: The file.
        offset: First byte in the file.
        num_bytes: Length.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    num_bytes: int


def read_headers(path: Path) -> tuple[TensorHeader, ...]:
    """Return the tensors of a file in the order of their bytes.

    Raises:
        CheckpointError: The file is absent, cut short, longer than its header says, or not a
            safetensors file; the message names the file.
    """
    header, data_start, file_bytes = _read_json(path)
    tensors = [
        _tensor(path, name, entry=entry, data_start=data_start)
        for name, entry in header.items()
        if name != "__metadata__"
    ]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.num_bytes))
    _check_layout(path, tensors, data_start=data_start, file_bytes=file_bytes)
    return tuple(tensors)


def _read_json(path: Path) -> tuple[dict[str, Any], int, int]:
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
            header_bytes = int.from_bytes(start[:8], "little")
            if start == _LFS_POINTER:
                raise CheckpointError(
                    f"{path}: expected weights, came a Git LFS pointer: run git lfs pull"
                )
            if file_bytes < 8 or not 2 <= header_bytes <= min(MAX_HEADER_BYTES, file_bytes - 8):
                raise CheckpointError(
                    f"{path}: {file_bytes} bytes do not hold a safetensors header: the file is cut "
                    f"short or of another format; download it again"
                )
            file.seek(8)
            text = file.read(header_bytes)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        header = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: the safetensors header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the safetensors header is not a JSON object")
    return header, 8 + header_bytes, file_bytes


def _tensor(path: Path, name: str, *, entry: Any, data_start: int) -> TensorHeader:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        start, stop = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {name}: header entry {entry!r} does not parse") from error
    if dtype in DTYPE_BYTES:
        want = math.prod(shape) * DTYPE_BYTES[dtype]
        if min((*shape, start), default=start) < 0 or stop - start != want:
            raise CheckpointError(
                f"{path}: {name}: {dtype} of shape {list(shape)} takes {want} bytes, the header "
                f"gives it {stop - start}: the file is damaged; download it again"
            )
    return TensorHeader(
        name=name,
        dtype=dtype,
        shape=shape,
        path=path,
        offset=data_start + start,
        num_bytes=stop - start,
    )


def _check_layout(
    path: Path, tensors: list[TensorHeader], *, data_start: int, file_bytes: int
) -> None:
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            raise CheckpointError(
                f"{path}: {tensor.name} begins at byte {tensor.offset}, expected {end}: "
                f"tensors overlap or leave a hole; download the file again"
            )
        end += tensor.num_bytes
    if end != file_bytes:
        what = "cut short" if file_bytes < end else "longer than its header says"
        raise CheckpointError(
            f"{path}: expected {end} bytes by its header, came {file_bytes}: the file is {what}; "
            f"download it again"
        )
