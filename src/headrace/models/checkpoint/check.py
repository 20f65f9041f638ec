"""``headrace load --check``: is this folder a checkpoint that can be served, and what is in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.sharding import Role, Sharding
from headrace.models.checkpoint.folder import read_eos_token_ids
from headrace.models.checkpoint.load import (
    Checkpoint,
    OnProgress,
    open_checkpoint,
)
from headrace.models.config import ModelConfig
from headrace.models.slices import ParameterSpec, weight_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """A folder that passed.

    Attributes:
        folder: The folder.
        config: Its config.
        num_files: Weight files.
        num_tensors: Tensors used.
        num_parameters: Elements of all parameters.
        num_active_parameters: Elements that take part in one token (top-k experts only).
        num_bytes: Bytes of the tensors used.
        dtypes: Element type as the format spells it, to the number of tensors.
        num_mtp: Multi-token-prediction tensors that are skipped.
        num_ignored: Tensors that are recomputed instead (rotary tables).
        has_tied_head: A head is saved although it is tied.
        kv_bytes_per_token: KV cache of one token, all layers and heads, in the config's dtype.
        eos_token_ids: Tokens that end a sequence.
        is_deep: Whether every value was read and found finite.
    """

    folder: Path
    config: ModelConfig
    num_files: int
    num_tensors: int
    num_parameters: int
    num_active_parameters: int
    num_bytes: int
    dtypes: Mapping[str, int]
    num_mtp: int
    num_ignored: int
    has_tied_head: bool
    kv_bytes_per_token: int
    eos_token_ids: tuple[int, ...]
    is_deep: bool

    def format(self) -> str:
        """Return the report as lines of ``name  value``."""
        config = self.config
        kinds = ", ".join(f"{dtype} x {count}" for dtype, count in sorted(self.dtypes.items()))
        experts = (
            f"{config.num_experts}, top {config.top_k} of width {config.moe_intermediate_size}"
        )
        rows = [
            ("folder", str(self.folder)),
            ("architecture", config.architecture),
            ("layers", _layers(config)),
            ("experts", experts if config.num_experts else "none (dense)"),
            (
                "hidden",
                f"{config.hidden_size}, {config.num_heads} query heads and "
                f"{config.num_kv_heads} KV heads of {config.head_dim}",
            ),
            ("vocabulary", f"{config.vocab_size} tokens, ends at {list(self.eos_token_ids)}"),
            ("context", f"{config.max_positions} tokens"),
            (
                "parameters",
                f"{_count(self.num_parameters)}, "
                f"{_count(self.num_active_parameters)} active per token",
            ),
            (
                "weights",
                f"{_size(self.num_bytes)} in {self.num_files} "
                f"file{'s' if self.num_files > 1 else ''}, {self.num_tensors} tensors ({kinds})",
            ),
            ("KV cache", f"{self.kv_bytes_per_token:,} bytes per token"),
            ("skipped", self._skipped()),
            ("values", "all finite" if self.is_deep else "not read (--deep reads them)"),
        ]
        lines = [f"{name:<12}  {value}" for name, value in rows if value]
        return "\n".join([*lines, "OK: every tensor used once, every parameter filled once"])

    def _skipped(self) -> str:
        parts = []
        if self.num_mtp:
            parts.append(f"{self.num_mtp} tensors of the multi-token-prediction layer")
        if self.num_ignored:
            parts.append(f"{self.num_ignored} rotary tables")
        if self.has_tied_head:
            parts.append("a copy of the tied head")
        return ", ".join(parts)


def check_checkpoint(
    folder: Path, *, deep: bool = False, on_progress: OnProgress | None = None
) -> CheckReport:
    """Run the loader's strict checks over a whole folder without building the model.

    Args:
        folder: Model folder.
        deep: Also read every value: all must be finite, and a saved tied head equal to the
            embedding. Nothing is kept: memory stays flat.
        on_progress: Called with (bytes read, bytes to read) when ``deep``.

    Raises:
        CheckpointError: The first fault found, in one line.

    Cost:
        Without ``deep`` only headers are read: seconds for hundreds of files.
    """
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    specs = weight_slices(config, Sharding(), Role.MONO, rank=0)
    eos_token_ids = read_eos_token_ids(folder, config)
    if deep:
        _read_all(checkpoint, specs, on_progress)
    headers = [source.header for parts in checkpoint.matched.sources.values() for source in parts]
    dtypes = {dtype: sum(h.dtype == dtype for h in headers) for dtype in {h.dtype for h in headers}}
    schemas = config.cache_schema()
    return CheckReport(
        folder=folder,
        config=config,
        num_files=len({header.path for header in headers}),
        num_tensors=len(headers),
        num_parameters=sum(math.prod(spec.shape) for spec in specs),
        num_active_parameters=_num_active(config, specs),
        num_bytes=sum(header.num_bytes for header in headers),
        dtypes=dtypes,
        num_mtp=len(checkpoint.mtp),
        num_ignored=len(checkpoint.matched.ignored),
        has_tied_head=checkpoint.matched.tied_head is not None,
        kv_bytes_per_token=sum(2 * s.num_kv_heads * s.token_bytes for s in schemas),
        eos_token_ids=eos_token_ids,
        is_deep=deep,
    )


def _read_all(
    checkpoint: Checkpoint, specs: tuple[ParameterSpec, ...], on_progress: OnProgress | None
) -> None:
    done, total = 0, sum(checkpoint.num_bytes(spec) for spec in specs)
    for spec in specs:
        checkpoint.scan(spec)
        done += checkpoint.num_bytes(spec)
        if on_progress is not None:
            on_progress(done, total)
    checkpoint.check_tied_head()


def _num_active(config: ModelConfig, specs: tuple[ParameterSpec, ...]) -> int:
    total = 0
    for spec in specs:
        size = math.prod(spec.shape)
        is_expert = ".experts." in spec.name
        total += size * config.top_k // config.num_experts if is_expert else size
    return total


def _layers(config: ModelConfig) -> str:
    num_dense = len(config.dense_layers)
    if config.num_experts and num_dense:
        return f"{config.num_layers}, {num_dense} of them dense"
    return str(config.num_layers)


def _count(number: int) -> str:
    for unit, scale in (("B", 1e9), ("M", 1e6)):
        if number >= scale:
            return f"{number / scale:.2f}{unit}"
    return str(number)


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes} bytes"
