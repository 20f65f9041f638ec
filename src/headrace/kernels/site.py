"""Looking at a device once, when an engine is built: what the catalogue chooses by."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

import torch

from headrace.core.errors import ConfigError
from headrace.kernels.catalogue import Site

# Optional packages that a variant may need, by the module that it imports.
OPTIONAL = ("triton", "flash_attn.cute", "quack", "cutlass")


def detect_site(device: str, *, dtype: str, sizes: Mapping[str, int], kv_dtype: str = "") -> Site:
    """Describe a device.

    Args:
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
        dtype: Of weights and rows, by torch's name.
        sizes: See ``Site``.
        kv_dtype: Of the KV pool; empty for ``dtype``.

    Raises:
        ConfigError: There is no such device.
    """
    libraries = frozenset(name for name in OPTIONAL if _can_find(name))
    if device == "cpu":
        return Site(dtype=dtype, kv_dtype=kv_dtype, libraries=libraries, sizes=sizes)
    _check_device(device)
    properties = torch.cuda.get_device_properties(device)
    return Site(
        device="cuda",
        capability=(properties.major, properties.minor),
        num_processors=properties.multi_processor_count,
        dtype=dtype,
        kv_dtype=kv_dtype,
        libraries=libraries,
        sizes=sizes,
    )


def _check_device(device: str) -> None:
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise ConfigError(f"device={device!r}: expected cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={device}: torch.cuda.is_available() is False here; use device=cpu, or "
            "install a CUDA build of torch and a driver"
        )
    if int(index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={device}: this machine shows {torch.cuda.device_count()} GPUs")


def _can_find(name: str) -> bool:
    # Finding a submodule imports its parent, and an older flash_attn beside another torch fails
    # in that with an undefined symbol; a loaded module without a spec is a ValueError.
    try:
        return find_spec(name) is not None
    except (ImportError, OSError, ValueError):
        return False
