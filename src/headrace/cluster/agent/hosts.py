"""All other hosts of one deployment, and which replica lies on which."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.cluster.agent.remote_host import RemoteHost
from headrace.core.launch import LaunchSpec


class Hosts:
    """The hosts that a supervisor starts ranks on besides its own.

    Args:
        hosts: Each by its name; none are called before ``open``.
        places: Name of the host of each replica that is not on this one.
    """

    def __init__(
        self,
        hosts: Mapping[str, RemoteHost] | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        self._hosts = dict(hosts or {})
        self._places = dict(places or {})

    async def open(self) -> None:
        """Call all of them.

        Raises:
            ConfigError: One does not answer, or refuses; none is left open.
        """
        calls = [host.open() for host in self._hosts.values()]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                await self.close()
                raise result

    async def close(self) -> None:
        """Hang up. Idempotent."""
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    def of(self, spec: LaunchSpec) -> RemoteHost | None:
        """Return the host of a rank; None when it is this one."""
        name = self._places.get(spec.replica)
        return self._hosts[name] if name is not None else None
