"""Shared memory transport (API stub; body follows)."""

from __future__ import annotations

from pathlib import Path


class ShmTransport:
    """Transport between processes of one host.

    Args:
        deployment_id: Prefix of segment names.
        owner: Rank's name, e.g. ``decode.0`` (``LaunchSpec.name``).
        rank: Rank's index in its replica.
        generation: Rank's generation.
        run_dir: Private folder for the doorbell socket.
        key: Secret of the deployment (keys the MAC of doorbell records).
    """

    def __init__(
        self,
        *,
        deployment_id: str,
        owner: str,
        rank: int,
        generation: int,
        run_dir: Path,
        key: bytes,
    ) -> None: ...


def sweep_segments(deployment_id: str) -> list[str]:
    """Unlink every segment of a deployment; return the names (for the supervisor, at the end)."""
    return []
