"""``python -m headrace.engine``: one rank, its launch spec on standard input as JSON.

Exit codes: 0 after a shutdown, 2 for what a person can mend, 1 for anything else.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import NoReturn

import torch

from headrace.core.errors import HeadraceError, UserError
from headrace.core.launch import LaunchSpec
from headrace.engine.rank import run_rank


def main() -> int:
    """Run the rank described on standard input."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    # A terminal's Ctrl-C reaches the whole process group; ending ranks is the supervisor's job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        spec = LaunchSpec.from_json(sys.stdin.buffer.read())
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(spec.engine.threads or max(1, cores // spec.ranks_on_host))
        run_rank(spec)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """End the process at once: ``run_rank`` has closed everything.

    Python's own way out takes torch apart piece by piece, which on a busy machine takes longer
    than the supervisor waits before it sends signals.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
