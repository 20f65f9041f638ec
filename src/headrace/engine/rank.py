"""One rank from launch spec to shutdown."""

from __future__ import annotations

from contextlib import ExitStack

from headrace.core.codec import Codec
from headrace.core.errors import HeadraceError, UserError
from headrace.core.launch import LaunchSpec
from headrace.core.messages import Failed, Ready
from headrace.core.sharding import Role
from headrace.engine.build_decode import build_decode
from headrace.engine.build_prefill import build_prefill
from headrace.engine.loops import Loop
from headrace.engine.parts import open_parts
from headrace.transfer.control import ControlSocket


def run_rank(spec: LaunchSpec) -> None:
    """Run one rank until it is told to shut down.

    Works as the main thing of a process and as one thread among others: nothing global is used.

    Raises:
        HeadraceError: The rank could not start or go on; the supervisor has been told.
    """
    control = ControlSocket(spec.address, Codec(bytes.fromhex(spec.key)))
    control.open()
    try:
        with ExitStack() as stack:
            _open(spec, control, stack).run()
    except HeadraceError as error:
        _report(spec, control, error)
        raise
    finally:
        control.close(linger_s=1.0)


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


def _open(spec: LaunchSpec, control: ControlSocket, stack: ExitStack) -> Loop:
    parts = open_parts(spec, control, stack)
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
