"""Addresses of hosts as people write them."""

from __future__ import annotations

import ipaddress

from headrace.core.errors import ConfigError


def parse_address(text: str, *, where: str) -> tuple[str, int]:
    """Return host and port of ``10.0.0.2:7100`` or ``name:7100``.

    Args:
        text: What was written.
        where: Name of the setting, for the message.

    Raises:
        ConfigError: Not a host and a port.

    Example:
        >>> parse_address("gpu-2:7100", where="[hosts] b")
        ('gpu-2', 7100)
    """
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) < 65536
    if not host or ":" in host or not is_port:
        raise ConfigError(
            f"{where} {text!r}: expected HOST:PORT with a name or an IPv4 address, "
            f"such as 10.0.0.2:7100"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether an IPv4 address reaches no further than its own machine.

    Example:
        >>> is_loopback("127.0.0.2"), is_loopback("10.0.0.2")
        (True, False)
    """
    return ipaddress.IPv4Address(host).is_loopback
