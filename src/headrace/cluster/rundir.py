"""What a deployment leaves on its machine, and how all of it goes away again.

A deployment has an id, a private folder for its sockets, and shared-memory segments whose names
begin with the id. The folder holds a locked file: the system drops the lock when the supervisor
ends, however it ends, so that the next deployment knows whose remains to sweep.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from headrace.core.errors import ConfigError

SEGMENTS = Path("/dev/shm")

# A Unix socket's path has at most 107 bytes; a rank's socket takes its share after the folder.
MAX_PATH_BYTES = 60

_PREFIX = "headrace-"
_ID_BYTES = 4
RUN_NAME_BYTES = len(_PREFIX) + 2 * _ID_BYTES
_LOCK = "lock"

_log = logging.getLogger(__name__)


class RunDir:
    """The folder of a living deployment. Made by ``open_run_dir``.

    Attributes:
        path: The folder, mode 0700.
        deployment_id: Prefix of every name that the deployment leaves on the machine.
    """

    def __init__(self, path: Path, *, lock: int, segments: Path) -> None:
        self.path = path
        self.deployment_id = path.name
        self._lock = lock
        self._segments = segments

    def address(self, name: str) -> str:
        """Control address of a socket in the folder."""
        return f"ipc://{self.path / name}.ctl"

    def sweep_rank(self, replica: str, rank: int, generation: int) -> None:
        """Delete what a generation of a rank left; call it when the rank's process is gone."""
        name = f"{replica}.{rank}.{generation}"
        left = [*self._segments.glob(f"{self.deployment_id}.{name}.*")]
        if rank == 0:
            # Made by rank 0, and nameless again as soon as all ranks have joined.
            left += self._segments.glob(f"{self.deployment_id}-{replica}-{generation}.*")
        for path in (*left, *self.path.glob(f"{name}.*")):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete segments and folder; idempotent. Call it when every rank is gone."""
        if self._lock >= 0:
            _delete(self.path, self._segments)
            os.close(self._lock)
            self._lock = -1


def open_run_dir(base: Path | None = None, *, segments: Path = SEGMENTS) -> RunDir:
    """Sweep what dead deployments left, then make the folder of a new one.

    Args:
        base: Where run folders live; by default the system's folder for temporary files, or
            ``/tmp`` where that has too long a name for sockets.
        segments: Where shared-memory segments live.

    Raises:
        ConfigError: The folder cannot be made there.
    """
    base = base or default_base()
    name = _PREFIX + secrets.token_hex(_ID_BYTES)
    if len(os.fsencode(base / name)) > MAX_PATH_BYTES:
        raise ConfigError(
            f"run folder under {base}: expected a path of at most {MAX_PATH_BYTES} bytes, since "
            f"sockets live in it"
        )
    try:
        sweep_stale(base, segments=segments)
        # It gets its proper name only when the lock is held, or a sweep could take it for dead.
        fresh = Path(tempfile.mkdtemp(prefix=".headrace-", dir=base))
        lock = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = fresh.rename(base / name)
    except OSError as error:
        raise ConfigError(f"no run folder can be made under {base}: {error}") from error
    return RunDir(path, lock=lock, segments=segments)


def sweep_stale(base: Path, *, segments: Path = SEGMENTS) -> list[str]:
    """Delete folders and segments of this user's dead deployments; return their ids."""
    swept = []
    for path in sorted(base.glob(_PREFIX + "*")):
        if not path.is_symlink() and _is_dead(path):
            _log.warning("sweeping what the dead deployment %s left", path.name)
            _delete(path, segments)
            swept.append(path.name)
    return swept


def _is_dead(path: Path) -> bool:
    """Whether a run folder of this user has no supervisor any more."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # Not a run folder, another user's, or one that another sweep is deleting.
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(lock).st_uid == os.getuid()
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _delete(path: Path, segments: Path) -> None:
    for segment in segments.glob(path.name + "*"):
        segment.unlink(missing_ok=True)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        _log.info("%s was deleted by somebody else", path)


def default_base() -> Path:
    """Return where run folders live: the system's temporary folder where its name is short."""
    base = Path(tempfile.gettempdir())
    return base if len(os.fsencode(base)) + 1 + RUN_NAME_BYTES <= MAX_PATH_BYTES else Path("/tmp")
