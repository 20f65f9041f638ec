"""Two network namespaces joined by a cable, as two hosts are, without any right outside of them."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ADDRESSES = ("10.73.0.1", "10.73.0.2")


class NotPermittedError(Exception):
    """This environment lets nobody make network namespaces."""


@dataclass(frozen=True)
class Network:
    """One namespace: what a command line begins with to run in it, and its address."""

    prefix: tuple[str, ...]
    address: str


def _hold(*command: str) -> subprocess.Popen[str]:
    """Run ``cat`` in new namespaces; they last until its input ends."""
    holder = subprocess.Popen(
        [*command, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        holder.stdin.write("here\n")
        holder.stdin.flush()
    except BrokenPipeError:
        pass
    if holder.stdout.readline() != "here\n":
        _release(holder)
        raise NotPermittedError(f"{' '.join(command)}: not permitted here")
    return holder


def _release(holder: subprocess.Popen[str]) -> None:
    for end in (holder.stdin, holder.stdout):
        assert end is not None
        end.close()
    holder.wait()


def _inside(holder: subprocess.Popen[str]) -> tuple[str, ...]:
    return ("nsenter", "-t", str(holder.pid), "-U", "--preserve-credentials", "-n")


def _run(prefix: tuple[str, ...], line: str) -> None:
    done = subprocess.run([*prefix, *line.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermittedError(f"{line}: {done.stderr.strip()}")


@contextmanager
def two_networks() -> Iterator[tuple[Network, Network]]:
    """Yield both ends of the cable.

    Raises:
        NotPermittedError: Says which step was refused.
    """
    holders = []
    try:
        holders.append(_hold("unshare", "--user", "--map-root-user", "--net"))
        first = _inside(holders[0])
        holders.append(_hold(*first, "unshare", "--net"))
        second = _inside(holders[1])
        _run(first, "ip link add cable0 type veth peer name cable1")
        _run(first, f"ip link set cable1 netns {holders[1].pid}")
        ends = [Network(first, ADDRESSES[0]), Network(second, ADDRESSES[1])]
        for number, end in enumerate(ends):
            _run(end.prefix, f"ip addr add {end.address}/24 dev cable{number}")
            _run(end.prefix, f"ip link set cable{number} up")
            _run(end.prefix, "ip link set lo up")
        yield ends[0], ends[1]
    except FileNotFoundError as error:
        raise NotPermittedError(f"{error.filename} is not installed") from error
    finally:
        while holders:
            _release(holders.pop())
