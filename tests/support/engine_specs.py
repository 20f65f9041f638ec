"""Launch specs of single ranks, and a control socket that only remembers."""

from __future__ import annotations

import secrets
from pathlib import Path

from headrace.core.codec import Codec
from headrace.core.launch import EngineConfig, LaunchSpec
from headrace.core.messages import Message
from headrace.core.sharding import Role, Sharding
from headrace.transfer.control import ControlSocket


class Outbox(ControlSocket):
    """A control socket that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__("ipc:///unused", Codec(bytes(16)))
        self.sent: list[tuple[str, Message]] = []

    def send(self, address: str, message: Message) -> bool:
        self.sent.append((address, message))
        return True


class Inbox:
    """A control socket whose messages a test puts in."""

    def __init__(self) -> None:
        self.inbox: list[Message] = []

    def recv_all(self) -> list[Message]:
        taken, self.inbox = self.inbox, []
        return taken

    def wait(self, timeout_s: float, *filenos: int) -> bool:
        return False

    def forget(self, address: str) -> None:
        pass


def make_spec(
    folder: Path, run_dir: Path, role: Role, *, engine: EngineConfig | None = None
) -> LaunchSpec:
    return LaunchSpec(
        deployment_id=f"hrunit-{secrets.token_hex(4)}",
        run_dir=str(run_dir),
        key="00" * 16,
        model=str(folder),
        replica=f"{role}0",
        role=role,
        sharding=Sharding(),
        rank=0,
        generation=1,
        ranks_on_host=1,
        supervisor=f"ipc://{run_dir}/supervisor",
        engine=engine or EngineConfig(kv_cache_mib=1),
    )
