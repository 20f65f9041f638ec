"""Signals to ranks on purpose, at the times that ``--chaos`` says."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import Callable, Collection

from headrace.core.chaos import ChaosPlan

# A rank that is stopped says nothing any more and is alive: only its silence tells.
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

_log = logging.getLogger(__name__)


async def strike(
    plan: ChaosPlan,
    *,
    alive: Callable[[], Collection[str]],
    send_signal: Callable[[str, signal.Signals], None],
) -> None:
    """Deal the blows of a plan, each at its time from now on; return after the last.

    A blow falls on one of the living ranks that its target means, drawn by the plan's seed; when
    none lives at that moment it is left out, and the log says so.

    Args:
        plan: What is to happen.
        alive: Names of the ranks that live.
        send_signal: Signals the rank of a name.
    """
    draw = random.Random(plan.writes.seed)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for blow in plan.blows:
        await asyncio.sleep(began_s + blow.at_s - loop.time())
        ranks = sorted(rank for rank in alive() if blow.hits(rank))
        if not ranks:
            _log.warning("chaos: %s=%s found no living rank", blow.kind, blow.target)
            continue
        rank = draw.choice(ranks)
        _log.warning("chaos: %s %s", blow.kind, rank)
        send_signal(rank, _SIGNALS[blow.kind])
