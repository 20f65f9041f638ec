"""Headers of safetensors files: what is accepted, and how each kind of damage is named."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headrace.core.errors import CheckpointError
from headrace.models.checkpoint.headers import read_headers


def write_raw(path: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def refuse(path: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        read_headers(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_headers_name_the_bytes_that_the_library_wrote(path: Path) -> None:
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}
    save_file(tensors, path, metadata={"format": "pt"})
    data = path.read_bytes()
    headers = {header.name: header for header in read_headers(path)}
    assert headers.keys() == tensors.keys()
    for name, header in headers.items():
        raw = data[header.offset : header.offset + header.num_bytes]
        came = torch.frombuffer(bytearray(raw), dtype=tensors[name].dtype).view(header.shape)
        assert torch.equal(came, tensors[name])


def test_every_cut_of_a_file_is_refused(path: Path) -> None:
    save_file({"a": torch.arange(4.0)}, path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refuse(path, "cut short")


def test_truncated_file_says_how_many_bytes_were_expected(path: Path) -> None:
    save_file({"a": torch.arange(4.0)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    refuse(path, f"expected {len(whole)} bytes by its header, came {len(whole) - 5}.*download")


def test_trailing_bytes_are_refused(path: Path) -> None:
    save_file({"a": torch.arange(4.0)}, path)
    path.write_bytes(path.read_bytes() + b"x")
    refuse(path, "longer than its header says")


def test_absent_file_is_named(path: Path) -> None:
    refuse(path, "cannot be read: No such file")


def test_lfs_pointer_is_recognised(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refuse(path, "came a Git LFS pointer: run git lfs pull")


def test_header_that_is_not_json_is_refused(path: Path) -> None:
    write_raw(path, b"{nonsense")
    refuse(path, "header is not JSON")
    write_raw(path, [1])
    refuse(path, "header is not a JSON object")


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"dtype": "F32", "shape": [2]}, "does not parse"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, r"F32 of shape \[2\] takes 8"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}, "damaged"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "overlap or leave a hole"),
        ({"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}, "does not parse"),
    ],
)
def test_bad_entries_are_refused_by_tensor(path: Path, entry: dict[str, Any], match: str) -> None:
    write_raw(path, {"w": entry}, b"\0" * 8)
    refuse(path, match)


def test_overlapping_tensors_are_refused(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    write_raw(path, {"a": entry, "b": entry}, b"\0" * 4)
    refuse(path, re.escape("overlap or leave a hole"))
