"""What this machine has, asked of the system one fact at a time. Nothing here judges."""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import resource
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

from headrace.cluster.rundir import SEGMENTS, default_base

UNLIMITED = math.inf

_GPU_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 3.0


class Machine(Protocol):
    """The facts that checks are made of; tests have one of their own."""

    def architecture(self) -> str:
        """Instruction set, as ``uname -m`` names it."""
        ...

    def num_cores(self) -> float:
        """Cores that this process may use: its affinity, cut by the control group's quota."""
        ...

    def free_memory_bytes(self) -> float:
        """Memory that can be had without swapping: the system's, or the control group's rest."""
        ...

    def free_shm_bytes(self) -> float:
        """Bytes left in ``/dev/shm``; negative when nothing can be made there."""
        ...

    def memlock_bytes(self) -> float:
        """Memory that a process may lock."""
        ...

    def ptrace_scope(self) -> int:
        """How much the kernel (Yama) keeps processes from each other's memory: 0 not at all."""
        ...

    def max_open_files(self) -> float:
        """Descriptors of one process."""
        ...

    def gpus(self) -> list[str]:
        """Names of the GPUs that a driver shows."""
        ...

    def has_module(self, name: str) -> bool:
        """Whether a Python package is installed."""
        ...

    def run_base(self) -> Path:
        """Folder that run folders are made in."""
        ...

    def folder_fault(self, path: Path) -> str:
        """Why no folder can be made under ``path``; empty when one can."""
        ...

    def bind_fault(self, host: str, port: int) -> str:
        """Why the port cannot be listened on; empty when it can."""
        ...

    def connect_fault(self, host: str, port: int) -> str:
        """Why nothing can be reached there; empty when something can."""
        ...


class ThisMachine:
    """The machine that this process runs on.

    Args:
        root: Where the kernel's own files lie.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def architecture(self) -> str:
        """See ``Machine.architecture``."""
        return platform.machine()

    def num_cores(self) -> float:
        """See ``Machine.num_cores``."""
        cores = float(len(os.sched_getaffinity(0)))
        quota, _, period = self._read("sys/fs/cgroup/cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, int(quota) / int(period))
        return cores

    def free_memory_bytes(self) -> float:
        """See ``Machine.free_memory_bytes``."""
        free = UNLIMITED
        for line in self._read("proc/meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                free = float(int(line.split()[1]) << 10)
        limit, used = (self._read(f"sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
        if limit.isdigit() and used.isdigit():
            free = min(free, float(int(limit) - int(used)))
        return free

    def free_shm_bytes(self) -> float:
        """See ``Machine.free_shm_bytes``."""
        if self.folder_fault(SEGMENTS):
            return -1.0
        return float(shutil.disk_usage(SEGMENTS).free)

    def memlock_bytes(self) -> float:
        """See ``Machine.memlock_bytes``."""
        return _soft_limit(resource.RLIMIT_MEMLOCK)

    def ptrace_scope(self) -> int:
        """See ``Machine.ptrace_scope``."""
        scope = self._read("proc/sys/kernel/yama/ptrace_scope")
        return int(scope) if scope.isdigit() else 0

    def max_open_files(self) -> float:
        """See ``Machine.max_open_files``."""
        return _soft_limit(resource.RLIMIT_NOFILE)

    def gpus(self) -> list[str]:
        """See ``Machine.gpus``."""
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        try:
            answer = subprocess.run(
                query, capture_output=True, text=True, timeout=_GPU_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            # No driver, or one that does not answer: then there is no GPU to speak of.
            return []
        return answer.stdout.splitlines()

    def has_module(self, name: str) -> bool:
        """See ``Machine.has_module``."""
        return importlib.util.find_spec(name) is not None

    def run_base(self) -> Path:
        """See ``Machine.run_base``."""
        return default_base()

    def folder_fault(self, path: Path) -> str:
        """See ``Machine.folder_fault``."""
        try:
            with tempfile.TemporaryDirectory(prefix=".headrace-", dir=path):
                return ""
        except OSError as error:
            return error.strerror or str(error)

    def bind_fault(self, host: str, port: int) -> str:
        """See ``Machine.bind_fault``."""
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family) as listener:
                # As the server does: an address that a dead server has just left is free.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, port))
                listener.listen(1)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def connect_fault(self, host: str, port: int) -> str:
        """See ``Machine.connect_fault``."""
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _read(self, path: str) -> str:
        try:
            return (self._root / path).read_text().strip()
        except OSError:
            # Kernels and containers differ in what they show; absent means no such bound.
            return ""


def _soft_limit(kind: int) -> float:
    soft, _ = resource.getrlimit(kind)
    return UNLIMITED if soft == resource.RLIM_INFINITY else float(soft)
