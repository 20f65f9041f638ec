"""Where the embedded model lies: a trained tiny Qwen3-MoE that ships inside the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def embedded_folder() -> Path:
    """Return the folder of the embedded model, laid out like any released checkpoint."""
    return Path(str(files("headrace.models"))) / "tiny" / "files"
