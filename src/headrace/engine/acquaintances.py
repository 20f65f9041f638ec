"""The addresses that a rank knows from the topology, so that those of the dead are let go."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.messages import Topology


class Acquaintances:
    """Addresses of all ranks that may still be spoken to.

    Args:
        forget: Drops the connection to an address.
    """

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._known: set[str] = set()

    def update(self, topology: Topology) -> set[str]:
        """Take a topology; return the addresses that are gone for good, already let go."""
        present = {rank.address for replica in topology.replicas for rank in replica.ranks}
        gone = self._known - present
        for address in gone:
            self._forget(address)
        self._known = present
        return gone
