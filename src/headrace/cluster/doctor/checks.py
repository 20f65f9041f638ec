"""Whether a machine can run a deployment: one small function for each thing that could be wrong.

A check compares what the deployment needs with what the machine has, and says in one finding what
was expected, what was found and what to do. It starts nothing and keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.cluster.doctor.finding import Finding, Level, Needs
from headrace.cluster.doctor.machine import Machine
from headrace.cluster.rundir import MAX_PATH_BYTES, RUN_NAME_BYTES

GIB = 1 << 30
MIB = 1 << 20
X86_64 = ("x86_64", "AMD64")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_SOCKET_PATH_BYTES = 107

# A rank without weights and pool: interpreter and libraries, pages that ranks share counted once
# (PSS of the embedded model's ranks: 179 to 182 MiB with 8 MiB pools).
PROCESS_BYTES = 200 * MIB

# Descriptors besides clients: libraries, logs, and for each rank a process and its sockets.
BASE_FILES = 64
FILES_PER_RANK = 8


def check_all(needs: Needs, machine: Machine) -> list[Finding]:
    """Return the findings of every check, in the order of ``CHECKS``."""
    return [check(needs, machine) for check in CHECKS]


def check_processor(needs: Needs, machine: Machine) -> Finding:
    """Ranks of one replica meet in shared memory, whose flags are plain stores."""
    found = machine.architecture()
    if needs.largest_replica <= 1:
        return _ok("processor", "any, as every replica has one rank", found)
    return _judge(
        "processor",
        found in X86_64,
        expected=f"x86-64, as a replica has {needs.largest_replica} ranks",
        found=found,
        action="run replicas of one rank here (tp=1, dp=1), or use an x86-64 machine",
    )


def check_torch(needs: Needs, machine: Machine) -> Finding:
    """Ranks compute with torch; the edge does without."""
    has = machine.has_module("torch")
    found = "installed" if has else "not installed"
    action = "install the build of torch for this machine"
    return _judge("torch", has, expected="installed", found=found, action=action)


def check_cores(needs: Needs, machine: Machine) -> Finding:
    """More ranks than cores work, in turns."""
    cores = machine.num_cores()
    return _judge(
        "cores",
        cores >= needs.num_ranks,
        bad=Level.WARN,
        expected=f"one for each of {needs.num_ranks} ranks",
        found=f"{cores:g}",
        action=f"expect ranks to take turns: up to {math.ceil(needs.num_ranks / cores)} times "
        f"slower than with enough cores",
    )


def check_memory(needs: Needs, machine: Machine) -> Finding:
    """Weights, pools and processes must fit, with something left for prompts and the page cache."""
    process_bytes = (needs.num_ranks + 1) * PROCESS_BYTES
    total = needs.weight_bytes + needs.kv_bytes + needs.group_bytes + process_bytes
    free = machine.free_memory_bytes()
    expected = (
        f"{_size(total)} (weights {_size(needs.weight_bytes)}, KV {_size(needs.kv_bytes)}, "
        f"processes {_size(process_bytes)})"
    )
    action = "set engine.kv_cache_mib lower, use fewer replicas, or --no-exact --dtype bfloat16"
    if total <= free < total * 1.1:
        action = "little is left for long prompts: watch it, or set engine.kv_cache_mib lower"
    level = Level.FAIL if total > free else Level.WARN if total * 1.1 > free else Level.OK
    return Finding(
        name="memory",
        level=level,
        expected=expected,
        found=f"{_size(free)} free",
        action="" if level is Level.OK else action,
    )


def check_shm(needs: Needs, machine: Machine) -> Finding:
    """Regions and groups lie in ``/dev/shm``, which containers keep small."""
    region_bytes = needs.kv_bytes if needs.transport == "shm" else 0
    total, free = region_bytes + needs.group_bytes, machine.free_shm_bytes()
    return _judge(
        "/dev/shm",
        free >= total,
        expected=f"{_size(total)} (KV {_size(region_bytes)}, groups {_size(needs.group_bytes)})",
        found=f"{_size(free)} free" if free >= 0 else "missing, or not writable",
        action="make it larger (docker run --shm-size, or mount -o remount,size=), or set "
        "engine.kv_cache_mib lower",
    )


def check_port(needs: Needs, machine: Machine) -> Finding:
    """The server binds its port before it starts a rank."""
    where = f"{needs.host}:{needs.port}"
    fault = machine.bind_fault(needs.host, needs.port)
    return _judge(
        "port",
        not fault,
        expected=f"{where} free" if needs.port else f"some port of {needs.host} free",
        found=fault or "free",
        action="stop what listens there, or choose another --port or --host",
    )


def check_exposure(needs: Needs, machine: Machine) -> Finding:
    """A server that others can reach, and that asks for no key, computes for everybody."""
    is_private = needs.host in LOOPBACK
    return _judge(
        "exposure",
        is_private or needs.has_keys,
        bad=Level.WARN,
        expected="loopback, or API keys",
        found=f"{needs.host}, {'with' if needs.has_keys else 'without'} keys",
        action="set serving.api_keys, or listen on 127.0.0.1",
    )


def check_links(needs: Needs, machine: Machine) -> Finding:
    """Clients and, over ``tcp``, ranks talk through sockets; other machines must answer."""
    faults = [
        f"{host}:{port} {fault}"
        for host, port in needs.peers
        if (fault := machine.connect_fault(host, port))
    ]
    loopback = machine.bind_fault("127.0.0.1", 0)
    if loopback:
        faults.insert(0, f"127.0.0.1 {loopback}")
    return _judge(
        "links",
        not faults,
        expected=", ".join(["loopback", *(f"{host}:{port}" for host, port in needs.peers)]),
        found="; ".join(faults) or "reachable",
        action="bring the interface up (ip link set lo up), start what listens there, or correct "
        "the address",
    )


def check_open_files(needs: Needs, machine: Machine) -> Finding:
    """Every client holds a descriptor of the edge."""
    least = BASE_FILES + FILES_PER_RANK * needs.num_ranks
    total, found = least + needs.max_requests, machine.max_open_files()
    return _judge(
        "open files",
        found >= total,
        bad=Level.WARN if found > least else Level.FAIL,
        expected=f"{total} ({needs.max_requests} requests, {needs.num_ranks} ranks)",
        found="unlimited" if found == math.inf else f"{found:g}",
        action=f"raise it (ulimit -n {total}), or set serving.max_requests lower",
    )


def check_run_folder(needs: Needs, machine: Machine) -> Finding:
    """Sockets lie in the run folder, and a Unix socket's path is short."""
    base = machine.run_base()
    folder_bytes = len(bytes(base)) + 1 + RUN_NAME_BYTES
    longest = folder_bytes + 1 + needs.longest_name
    fault = machine.folder_fault(base)
    if folder_bytes > MAX_PATH_BYTES or longest > MAX_SOCKET_PATH_BYTES:
        fault = f"paths of up to {longest} bytes"
    return _judge(
        "run folder",
        not fault,
        expected=f"a writable folder, paths of at most {MAX_SOCKET_PATH_BYTES} bytes in it",
        found=f"{base}: {fault or f'writable, paths of up to {longest} bytes'}",
        action="set TMPDIR to a short, writable folder",
    )


def check_memlock(needs: Needs, machine: Machine) -> Finding:
    """Only transports that pin memory for a device need it."""
    limit = machine.memlock_bytes()
    found = "unlimited" if limit == math.inf else _size(limit)
    return _ok("memlock", f"any: {needs.transport} pins no memory", found)


def check_ptrace(needs: Needs, machine: Machine) -> Finding:
    """Only transports that read another process's memory through the kernel need it."""
    expected = f"any: {needs.transport} reads no other process's memory"
    return _ok("ptrace scope", expected, str(machine.ptrace_scope()))


def check_gpus(needs: Needs, machine: Machine) -> Finding:
    """This build computes on the CPU, whatever else there is."""
    names = machine.gpus()
    return _ok("GPUs", "none", ", ".join(names) + " (not used)" if names else "none")


Check = Callable[[Needs, Machine], Finding]
CHECKS: tuple[Check, ...] = (
    check_processor,
    check_torch,
    check_cores,
    check_memory,
    check_shm,
    check_port,
    check_exposure,
    check_links,
    check_open_files,
    check_run_folder,
    check_memlock,
    check_ptrace,
    check_gpus,
)


def _ok(name: str, expected: str, found: str) -> Finding:
    return Finding(name=name, level=Level.OK, expected=expected, found=found)


def _judge(
    name: str,
    is_good: bool,
    *,
    expected: str,
    found: str,
    action: str,
    bad: Level = Level.FAIL,
) -> Finding:
    level = Level.OK if is_good else bad
    return Finding(
        name=name,
        level=level,
        expected=expected,
        found=found,
        action="" if is_good else action,
    )


def _size(num_bytes: float) -> str:
    """Return bytes in a unit that keeps three digits.

    Example:
        >>> _size(3 << 20), _size(5.5 * (1 << 30))
        ('3 MiB', '5.5 GiB')
    """
    if num_bytes < GIB:
        return f"{math.ceil(num_bytes / MIB)} MiB"
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes < math.inf else "unlimited"
