"""Shared-memory segments: files in /dev/shm whose names say whose they are.

``multiprocessing.shared_memory`` is not used: its resource tracker unlinks segments that other
processes still serve, and leaves those of killed ones. Here the owner unlinks on close, and the
supervisor sweeps what killed owners left, by prefix.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path

from headrace.core.errors import ConfigError, TransferError

SEGMENT_DIR = Path("/dev/shm")


class Segment:
    """A mapped segment; the creator also owns the name."""

    def __init__(self, path: Path, mapping: mmap.mmap, *, is_owner: bool) -> None:
        self._path = path
        self._mapping = mapping
        self._is_owner = is_owner
        self._buffer = memoryview(mapping)

    @property
    def name(self) -> str:
        """File name inside ``SEGMENT_DIR``."""
        return self._path.name

    @property
    def buffer(self) -> memoryview:
        """Writable bytes; valid until ``close``."""
        return self._buffer

    def close(self) -> None:
        """Unlink (if owner) and unmap. Idempotent.

        Arrays that still view the bytes keep the mapping alive until the last of them is gone:
        unmapping under them would turn their next access into a crash.
        """
        if self._is_owner:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        with contextlib.suppress(BufferError):
            self._buffer.release()
            self._mapping.close()


def create_segment(name: str, num_bytes: int) -> Segment:
    """Create, reserve and map a zeroed segment.

    Memory is reserved now: a full /dev/shm is one clear line at start, instead of a bus error at
    the first write into a page that is not there.

    Raises:
        ConfigError: /dev/shm has no room, or the name is taken.
    """
    path = _path_of(name)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists: another process has this name and generation") from error
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
        mapping = mmap.mmap(descriptor, num_bytes)
    except OSError as error:
        path.unlink()
        raise _no_room(num_bytes, error) from error
    finally:
        os.close(descriptor)
    return Segment(path, mapping, is_owner=True)


def attach_segment(name: str, num_bytes: int) -> Segment:
    """Map a peer's segment for writing.

    Raises:
        TransferError: It does not exist (its owner is gone) or is shorter than described.
    """
    path = _path_of(name)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise TransferError(f"segment {name}: {error.strerror}; its owner is gone") from error
    try:
        size = os.fstat(descriptor).st_size
        if size < num_bytes:
            raise TransferError(f"segment {name} has {size} bytes: expected {num_bytes}")
        mapping = mmap.mmap(descriptor, num_bytes)
    finally:
        os.close(descriptor)
    return Segment(path, mapping, is_owner=False)


def sweep_segments(deployment_id: str) -> list[str]:
    """Unlink every segment of a deployment whose processes have all ended; return the names."""
    swept = []
    for path in sorted(SEGMENT_DIR.glob(f"{deployment_id}.*")):
        path.unlink(missing_ok=True)
        swept.append(path.name)
    return swept


def _path_of(name: str) -> Path:
    if "/" in name or name.startswith("."):
        raise TransferError(f"segment name {name!r}: expected a plain file name")
    return SEGMENT_DIR / name


def _no_room(num_bytes: int, error: OSError) -> Exception:
    if error.errno != errno.ENOSPC:
        return ConfigError(f"{SEGMENT_DIR}: cannot reserve {num_bytes} bytes: {error.strerror}")
    free = os.statvfs(SEGMENT_DIR)
    return ConfigError(
        f"{SEGMENT_DIR} has {free.f_bavail * free.f_frsize >> 20} MiB free, the KV region needs "
        f"{-(-num_bytes >> 20)} MiB: make the first larger (containers: --shm-size) or "
        f"kv_cache_mib smaller"
    )
