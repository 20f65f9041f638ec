"""Under which address hosts reach each other."""

from __future__ import annotations

import socket

from headrace.core.addresses import is_loopback
from headrace.core.errors import ConfigError


def resolve(host: str, *, where: str) -> str:
    """Return the IPv4 address of a host that was given by name or address.

    Raises:
        ConfigError: Nobody knows the name.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(
            f"{where}: no address is known of {host!r}: {error.strerror}; give its IPv4 address"
        ) from error


def own_address(given: str, peers: dict[str, str]) -> str:
    """Return the IPv4 address under which other hosts reach this one.

    Args:
        given: What the operator says; empty takes the one from which the first peer is reached.
        peers: IPv4 address of each other host by name; at least one.

    Raises:
        ConfigError: A loopback address for a host that is elsewhere, or no way to a host.
    """
    mine = resolve(given, where="address") if given else _source_towards(*next(iter(peers.items())))
    for name, peer in peers.items():
        if is_loopback(mine) and not is_loopback(peer):
            raise ConfigError(
                f"address {mine} is loopback, and host {name} ({peer}) cannot reach it; give the "
                f"address of this host that others reach"
            )
    return mine


def _source_towards(name: str, peer: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: it only asks the kernel which way it would take.
            probe.connect((peer, 9))
        except OSError as error:
            raise ConfigError(f"host {name} ({peer}): no way there: {error.strerror}") from error
        return str(probe.getsockname()[0])
