"""Reading weights: a rank's slices only, streamed from mapped files, each value checked finite.

Files are mapped, never read whole: a copy touches the pages of its own slice, and those are given
back to the system after each part. Besides the result, memory stays under about 64 MiB.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from headrace.core.errors import CheckpointError
from headrace.core.sharding import Role, Sharding
from headrace.models.checkpoint.boxes import Copy, copies, split_rows
from headrace.models.checkpoint.folder import read_config, read_weight_files
from headrace.models.checkpoint.headers import DTYPE_BYTES, TensorHeader
from headrace.models.checkpoint.match import EMBEDDING, Matched, Source, match
from headrace.models.config import ModelConfig
from headrace.models.slices import ParameterSpec, weight_slices

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
OnBytes = Callable[[int], None]

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_PART_ELEMENTS = 8 << 20


class Checkpoint:
    """A folder whose names, shapes and sizes have been checked against its config.

    Made by ``open_checkpoint``. Reads on demand; holds mappings of the files, no weights. One
    thread at a time.

    Attributes:
        folder: The model folder.
        config: Its config.
        matched: Where every tensor belongs.
        mtp: Skipped tensors of draft layers, of the weight files and of files of their own.
    """

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        *,
        matched: Matched,
        mtp: tuple[TensorHeader, ...] = (),
    ) -> None:
        self.folder = folder
        self.config = config
        self.matched = matched
        self.mtp = mtp
        self._maps: dict[Path, mmap.mmap] = {}

    def num_bytes(self, spec: ParameterSpec) -> int:
        """Bytes of the files that ``read`` of this spec reads."""
        return sum(
            copy.num_elements * DTYPE_BYTES[source.header.dtype]
            for source in self.matched.sources[spec.name]
            for copy in copies(spec, source.box)
        )

    def read(
        self, spec: ParameterSpec, *, dtype: torch.dtype, on_bytes: OnBytes | None = None
    ) -> Tensor:
        """Read one rank's slice of one parameter.

        Args:
            spec: Parameter and slice.
            dtype: Type of the result; values are rounded to it.
            on_bytes: Called with the bytes just read, several times for a large parameter.

        Returns:
            A new contiguous CPU tensor of ``spec.local_shape``.

        Raises:
            CheckpointError: A value is NaN or infinite (names the tensor of the file).
        """
        target = torch.empty(spec.local_shape, dtype=dtype)
        for source in self.matched.sources[spec.name]:
            for copy in copies(spec, source.box):
                for part in split_rows(copy, _PART_ELEMENTS):
                    self._copy(source, part, target)
                    if on_bytes is not None:
                        on_bytes(part.num_elements * DTYPE_BYTES[source.header.dtype])
        return target

    def scan(self, spec: ParameterSpec, *, on_bytes: OnBytes | None = None) -> None:
        """Read every value of a parameter and keep none.

        Raises:
            CheckpointError: A value is NaN or infinite (names the tensor of the file).
        """
        for source in self.matched.sources[spec.name]:
            view = self._view(source.header, (-1,))
            for values in view.split(_PART_ELEMENTS):
                _check_finite(source.header, values)
                self._release(source.header)
            if on_bytes is not None:
                on_bytes(source.header.num_bytes)

    def check_tied_head(self) -> None:
        """Compare a saved head with the embedding it is tied to, where there is one.

        Raises:
            CheckpointError: They differ.
        """
        head = self.matched.tied_head
        if head is None:
            return
        (embedding,) = self.matched.sources[EMBEDDING]
        heads = self._view(head, (-1,)).split(_PART_ELEMENTS)
        rows = self._view(embedding.header, (-1,)).split(_PART_ELEMENTS)
        for head_part, embedding_part in zip(heads, rows, strict=True):
            if not torch.equal(head_part.float(), embedding_part.float()):
                raise CheckpointError(
                    f"{head.path}: {head.name} differs from {EMBEDDING}, to which config.json "
                    f"ties it: expected equal values; mend tie_word_embeddings in config.json"
                )
            self._release(head)
            self._release(embedding.header)

    def _copy(self, source: Source, part: Copy, target: Tensor) -> None:
        shape = tuple(stop - start for start, stop in source.box)
        values = target[part.target]
        values.copy_(self._view(source.header, shape)[part.source])
        _check_finite(source.header, values)
        self._release(source.header)

    def _view(self, header: TensorHeader, shape: tuple[int, ...]) -> Tensor:
        mapped = self._maps.get(header.path)
        if mapped is None:
            with header.path.open("rb") as file:
                # A private copy-on-write mapping: torch accepts no read-only memory in silence.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._maps[header.path] = mapped
        dtype = TORCH_DTYPES[header.dtype]
        count = header.num_bytes // dtype.itemsize
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=header.offset).view(shape)

    def _release(self, header: TensorHeader) -> None:
        start = header.offset // mmap.PAGESIZE * mmap.PAGESIZE
        length = header.offset + header.num_bytes - start
        self._maps[header.path].madvise(mmap.MADV_DONTNEED, start, length)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read a folder's config and headers and check everything that needs no weight.

    Logs one line that names skipped multi-token-prediction tensors.

    Raises:
        CheckpointError: One clear line; see ``folder``, ``headers`` and ``match``.
    """
    config = read_config(folder)
    files = read_weight_files(folder)
    specs = weight_slices(config, Sharding(), Role.MONO, rank=0)
    matched = match(files.tensors, specs)
    mtp = (*matched.mtp, *files.mtp)
    if mtp:
        names = sorted({tensor.path.name for tensor in mtp})
        logger.info(
            "%s: skipping %d tensors of the multi-token-prediction layer (%s ... in %s): "
            "drafting is not here yet",
            folder,
            len(mtp),
            mtp[0].name,
            ", ".join(names),
        )
    return Checkpoint(folder, config, matched=matched, mtp=mtp)


def load_weights(
    folder: Path,
    specs: Iterable[ParameterSpec],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
) -> dict[str, Tensor]:
    """Read one rank's part of a checkpoint, strictly.

    Args:
        folder: Model folder as released.
        specs: What the rank holds: ``weight_slices(config, ...)`` of the same folder's config.
        dtype: Element type of the engine; values are rounded to it.
        device: Where each parameter goes as soon as it is read: the host holds one at a time.
        on_progress: Called with (bytes read, bytes to read) of this rank's part; first with 0.

    Returns:
        Canonical name to a new contiguous tensor of the spec's ``local_shape`` on ``device``.

    Raises:
        CheckpointError: Anything in the folder is not exactly as config.json promises, or a value
            is NaN or infinite. Names, shapes and sizes are checked before any weight is read.

    Guarantees:
        Every tensor of the files is used once (rotary tables and ``mtp.*`` set aside), every
        parameter filled once. Bytes read are those of the rank's slices, plus a tied head that is
        saved as well, which must equal the embedding.
    """
    specs = tuple(specs)
    checkpoint = open_checkpoint(folder)
    progress = _Progress(sum(checkpoint.num_bytes(spec) for spec in specs), on_progress)
    weights = {
        spec.name: checkpoint.read(spec, dtype=dtype, on_bytes=progress.add).to(device)
        for spec in specs
    }
    if EMBEDDING in weights:
        checkpoint.check_tied_head()
    return weights


class _Progress:
    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self._done = 0
        self._total = total
        self._on_progress = on_progress
        self.add(0)

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def _check_finite(header: TensorHeader, values: Tensor) -> None:
    low, high = torch.aminmax(values)  # one pass, no copy; NaN spreads to both
    if torch.isfinite(low) and torch.isfinite(high):
        return
    num_bad = int((~torch.isfinite(values)).sum())
    raise CheckpointError(
        f"{header.path}: {header.name}: {num_bad} of {values.numel()} values read are NaN or "
        f"infinite: the file is damaged or the training diverged; download it again"
    )
