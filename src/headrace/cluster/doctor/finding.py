"""What a deployment needs of a machine, and what a check says about it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """How bad a finding is; only ``FAIL`` keeps the deployment from starting or working."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True, kw_only=True):
    """What one check found.

    Attributes:
        name: What was looked at.
        level: How bad it is.
        expected: What the deployment needs.
        found: What the machine has.
        action: What to do; empty when nothing is to be done.
    """

    name: str
    level: Level
    expected: str
    found: str
    action: str = ""


class Needs(Struct, frozen=True, kw_only=True):
    """What a deployment asks of one machine.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        has_keys: Clients must send an API key.
        max_requests: Clients that may be connected at a time.
        transport: KV transport.
        num_ranks: Rank processes.
        largest_replica: Ranks of the largest replica.
        weight_bytes: Weights of all ranks, in the form that they compute with.
        kv_bytes: KV regions of all ranks.
        group_bytes: Segments that ranks of a replica meet in.
        longest_name: Longest file name in the run folder [bytes].
        peers: Addresses on other machines that must be reached, with their ports.
    """

    host: str
    port: int
    has_keys: bool
    max_requests: int
    transport: str
    num_ranks: int
    largest_replica: int
    weight_bytes: int
    kv_bytes: int
    group_bytes: int
    longest_name: int
    peers: tuple[tuple[str, int], ...] = ()
