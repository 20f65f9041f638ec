"""The secret that the hosts of a deployment share: a file, and the keys derived from it.

The secret itself never travels. Who holds it can start processes on every host whose agent holds
it too, so its file must be its owner's alone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path

from headrace.core.errors import ConfigError

SECRET_BYTES = 32


def write_new_key(path: Path) -> None:
    """Make a key file that only its owner can read.

    Raises:
        ConfigError: There is one already, or the folder cannot be written.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path}: exists already; delete it first to make another key") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    with open(file, "w") as text:
        text.write(secrets.token_hex(SECRET_BYTES) + "\n")


def read_key(path: Path) -> bytes:
    """Return the secret of a key file.

    Raises:
        ConfigError: No such file, one that others can read, or one that holds no key.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise ConfigError(
            f"key file {path}: {error.strerror}; make one with 'headrace agent --new-key FILE' and "
            f"copy it to every host"
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"key file {path}: others than its owner have rights to it ({mode:04o}); "
            f"run 'chmod 600 {path}'"
        )
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"key file {path}: expected {2 * SECRET_BYTES} hexadecimal digits")
    return secret


def derive(secret: bytes, purpose: bytes, fresh: bytes) -> bytes:
    """Return a key for one purpose, renewed with every ``fresh`` [32 bytes].

    Args:
        secret: The shared secret.
        purpose: 1 to 16 bytes; keys of two purposes say nothing about each other.
        fresh: Bytes that were never used before with this purpose.
    """
    return hashlib.blake2b(fresh, key=secret, digest_size=32, person=purpose).digest()
