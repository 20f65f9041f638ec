"""Turns itself into a rank's process that cannot outlive its supervisor.

Run as a script: ``python -I -S child.py SUPERVISOR_PID COMMAND...``. It asks the kernel to kill
this process when the parent dies, which lasts through ``exec``, and becomes the command. Doing it
here, in a fresh process, keeps the supervisor from running Python between fork and exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def command_of(command: tuple[str, ...], *, supervisor_pid: int) -> tuple[str, ...]:
    """Return the command line that runs ``command`` bound to its supervisor's life."""
    script = str(Path(__file__).resolve())
    return (sys.executable, "-I", "-S", script, str(supervisor_pid), *command)


def die_with_parent(supervisor_pid: int) -> None:
    """Ask for SIGKILL at the parent's death; leave now if it is dead already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # Whoever died before the call sends no signal any more.
    if os.getppid() != supervisor_pid:
        sys.exit(f"the supervisor (process {supervisor_pid}) is gone")


def let_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Have the compute library's threads sleep, not spin, while they wait for each other.

    The library reads this when it is loaded. Ranks share cores with each other and with whatever
    else runs; a thread that spins holds the core that the one it waits for needs. An operator's
    own choice stands.
    """
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def main(arguments: list[str]) -> None:
    """Bind this process to its supervisor and become the command."""
    supervisor_pid, *command = arguments
    die_with_parent(int(supervisor_pid))
    let_threads_sleep(os.environ)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
