"""What a device row says about where it was measured."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import torch

from headrace.bench.rows import machine as host

# Whose versions decide how fast kernels are, besides those that every row names.
PACKAGES = ("triton", "flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels")
# Key of a row -> what nvidia-smi calls it.
CLOCKS = {
    "sm_mhz": "clocks.sm",
    "max_sm_mhz": "clocks.max.sm",
    "memory_mhz": "clocks.mem",
    "power_limit_w": "power.limit",
}
SMI_TIMEOUT_S = 10.0

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMachine:
    """A device and its software.

    Attributes:
        name: In words, device first.
        num_processors: Streaming multiprocessors.
        driver: Version of the driver; empty when nvidia-smi does not answer.
        clocks: Clocks [MHz] and power limit [W] by the keys of ``CLOCKS``; what is not known is
            absent.
        versions: Of packages and of the CUDA that torch was built for.
    """

    name: str
    num_processors: int
    driver: str = ""
    clocks: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def describe_machine(device: str, *, run: Run | None = None) -> DeviceMachine:
    """Look at a CUDA device: clocks are those of this moment, so ask while it is warm.

    Args:
        device: ``"cuda"`` or ``"cuda:N"``.
        run: Runs a command and returns its output; a fake in tests.
    """
    properties = torch.cuda.get_device_properties(device)
    driver, clocks = ask_smi(str(properties.uuid), run=run or _run)
    return DeviceMachine(
        name=f"{properties.name}; {host()}",
        num_processors=properties.multi_processor_count,
        driver=driver,
        clocks=clocks,
        versions=package_versions(),
    )


def ask_smi(uuid: str, *, run: Run) -> tuple[str, dict[str, float]]:
    """Return driver version and clocks of a device; nothing where nvidia-smi does not answer.

    Args:
        uuid: Of the device, without prefix: its index may differ where devices are hidden.
        run: Runs a command and returns its output.
    """
    query = ",".join(("driver_version", *CLOCKS.values()))
    command = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={query}"]
    try:
        text = run([*command, "--format=csv,noheader,nounits"])
    except (OSError, subprocess.SubprocessError):
        return "", {}
    driver, *values = (part.strip() for part in text.strip().split(","))
    clocks = dict(zip(CLOCKS, map(_number, values), strict=False))
    return driver, {name: value for name, value in clocks.items() if value is not None}


def package_versions() -> dict[str, str]:
    """Return the versions of ``PACKAGES`` that are installed, and of torch's CUDA."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "cuda": str(torch.version.cuda)} if torch.version.cuda else found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]", as virtual devices say of their clocks


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True
    )
    return done.stdout
