"""One rank from launch spec to shutdown, over all generations of its replica.

A generation owns the group, the regions, the sockets and every session. When the replica loses a
rank, or the supervisor asks, all of that is closed, which is the proof that this rank will never
write again under that generation; the weights stay, and the rank goes on under the next one.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import msgspec

from headrace.core.codec import Codec
from headrace.core.errors import HeadraceError, ReplicaError, UserError
from headrace.core.launch import LaunchSpec
from headrace.core.messages import Broken, Failed, Ready, Reform, Shutdown
from headrace.core.sharding import Role
from headrace.engine.build_decode import build_decode
from headrace.engine.build_prefill import build_prefill
from headrace.engine.kept import Kept
from headrace.engine.loops import Loop
from headrace.engine.parts import open_parts
from headrace.transfer.control import ControlSocket

# The supervisor answers at once; a rank that is not told anything is nobody's.
ORDER_TIMEOUT_S = 60.0


def run_rank(spec: LaunchSpec) -> None:
    """Run one rank until it is told to shut down.

    Works as the main thing of a process and as one thread among others: nothing global is used.

    Raises:
        HeadraceError: The rank could not start or go on; the supervisor has been told.
    """
    kept = Kept.of(spec)
    generation: int | None = spec.generation
    while generation is not None:
        generation = _live(msgspec.structs.replace(spec, generation=generation), kept)


def _live(spec: LaunchSpec, kept: Kept) -> int | None:
    """Run one generation; return the next one, or None after a shutdown."""
    codec = Codec(bytes.fromhex(spec.key))
    control = ControlSocket(spec.address, codec, host=spec.control_host)
    control.open()
    try:
        return _run(spec, control, kept)
    except HeadraceError as error:
        _report(spec, control, error)
        raise
    finally:
        control.close(linger_s=1.0)


def _run(spec: LaunchSpec, control: ControlSocket, kept: Kept) -> int | None:
    try:
        with ExitStack() as stack:
            following = _open(spec, control, stack, kept).run()
    except ReplicaError as error:
        if kept.loaded is None:
            raise
        _say_left(spec, control, error)
        return _await_order(control)
    if following is not None:
        _say_left(spec, control, ReplicaError(f"{spec.name} was told to re-form"))
    return following


def _open(spec: LaunchSpec, control: ControlSocket, stack: ExitStack, kept: Kept) -> Loop:
    parts = open_parts(spec, control, stack, kept)
    loop = build_prefill(parts, stack) if spec.role is Role.PREFILL else build_decode(parts, stack)
    control.send(
        spec.supervisor,
        Ready(
            replica=spec.replica,
            info=parts.info,
            num_blocks=parts.layout.num_blocks,
            block_size=parts.layout.block_size,
            max_tokens=parts.loaded.max_model_tokens,
        ),
    )
    return loop


def _say_left(spec: LaunchSpec, control: ControlSocket, error: ReplicaError) -> None:
    control.send(
        spec.supervisor,
        Broken(
            replica=spec.replica,
            rank=spec.rank,
            generation=spec.generation,
            error=str(error),
            address=control.address,
        ),
    )


def _await_order(control: ControlSocket) -> int | None:
    """Wait until the supervisor says how to go on: a generation, or None to shut down."""
    deadline_s = time.monotonic() + ORDER_TIMEOUT_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        control.wait(left_s)
        for message in control.recv_all():
            match message:
                case Reform():
                    return message.generation
                case Shutdown():
                    return None
    raise ReplicaError(
        f"no word from the supervisor for {ORDER_TIMEOUT_S:g} s after the group broke"
    )


def _report(spec: LaunchSpec, control: ControlSocket, error: HeadraceError) -> None:
    control.send(
        spec.supervisor,
        Failed(
            replica=spec.replica,
            rank=spec.rank,
            error=str(error),
            is_user_error=isinstance(error, UserError),
        ),
    )
