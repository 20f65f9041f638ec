"""A machine that has what a test says, and needs that it can meet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.cluster.doctor.finding import Needs

GIB = 1 << 30


@dataclass(kw_only=True)
class FakeMachine:
    """A ``Machine`` of plain values; faults are by folder or by (host, port)."""

    arch: str = "x86_64"
    cores: float = 8.0
    memory: float = 16.0 * GIB
    shm: float = 8.0 * GIB
    memlock: float = 8.0 * (1 << 20)
    scope: int = 1
    files: float = 20_000.0
    gpu_names: list[str] = field(default_factory=list)
    modules: set[str] = field(default_factory=lambda: {"torch"})
    base: Path = Path("/tmp")
    folder_faults: dict[Path, str] = field(default_factory=dict)
    bind_faults: dict[tuple[str, int], str] = field(default_factory=dict)
    connect_faults: dict[tuple[str, int], str] = field(default_factory=dict)

    def architecture(self) -> str:
        return self.arch

    def num_cores(self) -> float:
        return self.cores

    def free_memory_bytes(self) -> float:
        return self.memory

    def free_shm_bytes(self) -> float:
        return self.shm

    def memlock_bytes(self) -> float:
        return self.memlock

    def ptrace_scope(self) -> int:
        return self.scope

    def max_open_files(self) -> float:
        return self.files

    def gpus(self) -> list[str]:
        return self.gpu_names

    def has_module(self, name: str) -> bool:
        return name in self.modules

    def run_base(self) -> Path:
        return self.base

    def folder_fault(self, path: Path) -> str:
        return self.folder_faults.get(path, "")

    def bind_fault(self, host: str, port: int) -> str:
        return self.bind_faults.get((host, port), "")

    def connect_fault(self, host: str, port: int) -> str:
        return self.connect_faults.get((host, port), "")


NEEDS = Needs(
    host="127.0.0.1",
    port=8000,
    has_keys=False,
    max_requests=1024,
    transport="shm",
    num_ranks=4,
    largest_replica=2,
    weight_bytes=2 * GIB,
    kv_bytes=GIB,
    group_bytes=8 << 20,
    longest_name=30,
)


def needs(**changes: Any) -> Needs:
    """Return ``NEEDS`` with changes."""
    return msgspec.structs.replace(NEEDS, **changes)
