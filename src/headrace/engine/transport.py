"""Makes the transport that a launch spec names."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.core.launch import LaunchSpec
from headrace.core.transport import Transport
from headrace.transfer.chaos import ChaosTransport
from headrace.transfer.shm import ShmTransport
from headrace.transfer.tcp import TcpTransport


def make_transport(spec: LaunchSpec) -> Transport:
    """Return the rank's transport, not yet open, with whatever faults the spec asks for.

    Raises:
        ConfigError: The spec names one that this build does not have.
    """
    transport = _plain_transport(spec)
    if spec.faults.is_calm:
        return transport
    return ChaosTransport(
        transport,
        spec.faults,
        num_ranks=spec.sharding.num_ranks,
        name=f"{spec.name}.{spec.generation}",
    )


def _plain_transport(spec: LaunchSpec) -> Transport:
    match spec.transport:
        case "shm":
            return ShmTransport(
                deployment_id=spec.deployment_id,
                owner=spec.name,
                rank=spec.rank,
                generation=spec.generation,
                run_dir=Path(spec.run_dir),
                key=bytes.fromhex(spec.key),
            )
        case "tcp":
            return TcpTransport(
                owner=spec.name,
                rank=spec.rank,
                generation=spec.generation,
                key=bytes.fromhex(spec.key),
                host=spec.host,
            )
    raise ConfigError(f"transport={spec.transport!r}: this build has shm and tcp")
