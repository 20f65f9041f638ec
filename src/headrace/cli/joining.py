"""What a deployment needs of the hosts that it spans, made from its config."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace import __version__
from headrace.cli.source import EMBEDDED, ModelSource
from headrace.cluster.agent.hosts import Hosts
from headrace.cluster.agent.keys import derive, read_key
from headrace.cluster.agent.orders import Open
from headrace.cluster.agent.reach import own_address, resolve
from headrace.cluster.agent.remote_host import RemoteHost
from headrace.core.addresses import parse_address
from headrace.deployment import HERE, DeploymentConfig

KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The hosts of a deployment, not called yet.

    Attributes:
        key: Control key of the deployment.
        hosts: The other hosts.
        addresses: IPv4 address of each host by name; None when all replicas are here.
    """

    key: bytes
    hosts: Hosts
    addresses: dict[str, str] | None

    @property
    def own_address(self) -> str:
        """Address of this host as the others reach it; empty when there are none."""
        return self.addresses[HERE] if self.addresses is not None else ""


def join_hosts(
    config: DeploymentConfig,
    source: ModelSource,
    *,
    deployment_id: str,
    on_line: Callable[[str, str], None],
) -> Joined:
    """Return what joins the hosts of ``config``.

    Args:
        config: The deployment.
        source: Its model, which every host must have under the same path.
        deployment_id: Its name.
        on_line: Called with a rank's name and each line that it writes.

    Raises:
        ConfigError: A key file that cannot be used, a host that nobody knows, or one that cannot
            reach this one.
    """
    if not config.places:
        return Joined(key=secrets.token_bytes(KEY_BYTES), hosts=Hosts(), addresses=None)
    secret, nonce = read_key(Path(config.key_file)), secrets.token_bytes(KEY_BYTES)
    opening = Open(
        version=__version__,
        deployment_id=deployment_id,
        nonce=nonce,
        # The embedded model lies elsewhere on every host.
        model=EMBEDDED if config.model == EMBEDDED else source.launch,
    )
    hosts, addresses = {}, {}
    for name in sorted(set(config.places.values())):
        host, port = parse_address(config.hosts[name], where=f"hosts.{name}")
        addresses[name] = resolve(host, where=f"hosts.{name}")
        hosts[name] = RemoteHost(
            name, (addresses[name], port), secret=secret, opening=opening, on_line=on_line
        )
    return Joined(
        key=derive(secret, b"deployment", nonce),
        hosts=Hosts(hosts, config.places),
        addresses={HERE: own_address(config.address, addresses), **addresses},
    )
