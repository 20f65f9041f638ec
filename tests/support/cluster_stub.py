"""A rank's process without an engine: it speaks the messages and behaves as its spec asks.

``spec.model`` is ``stub:BEHAVIOUR``, or ``stub:B0,B1,...`` for one behaviour per rank:

    obey      ready; answers a topology with a heartbeat; re-forms on Reform; leaves on Shutdown
    cling     as obey, but never leaves its generation
    mute      as obey, but its second process (generation 4 and later) never gets ready
    refuse    says that a person must mend something, and leaves
    fail      says that it cannot go on, and leaves
    crash     leaves with exit code 3 and a last line, without a message
    vanish    is killed before it is ready
    hang      never gets ready
    stubborn  ready; leaves on SIGTERM only
    deaf      ready; leaves on SIGKILL only
    stale     says that another generation of it is ready, and waits
"""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import zmq

from headrace.core.codec import Codec
from headrace.core.launch import LaunchSpec
from headrace.core.messages import (
    Broken,
    Failed,
    Heartbeat,
    LoadProgress,
    Message,
    RankInfo,
    Ready,
    Reform,
    Shutdown,
    Topology,
)

FOREVER_S = 600.0
FIRST_GENERATION = 3


def stub_command() -> tuple[str, ...]:
    """Command line that runs this file with the paths of the running test."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import main; main()"
    return (sys.executable, "-c", code)


class Stub:
    def __init__(self, spec: LaunchSpec) -> None:
        self.codec = Codec(bytes.fromhex(spec.key))
        self.context = zmq.Context()
        self.inbox = self.context.socket(zmq.PULL)
        self.be(spec)
        self.outbox = self.context.socket(zmq.PUSH)
        self.outbox.connect(spec.supervisor)

    def be(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.inbox.bind(spec.address)

    def send(self, message: Message) -> None:
        self.outbox.send(self.codec.encode(message))

    def info(self, generation: int) -> RankInfo:
        return RankInfo(rank=self.spec.rank, generation=generation, address=self.spec.address)

    def say_ready(self, generation: int) -> None:
        self.send(
            Ready(
                replica=self.spec.replica,
                info=self.info(generation),
                num_blocks=64,
                block_size=16,
                max_tokens=1024,
            )
        )

    def reform(self, generation: int) -> None:
        """As a rank does: say that the old generation is over, and be ready in the next."""
        spec = self.spec
        self.send(
            Broken(
                replica=spec.replica, rank=spec.rank, generation=spec.generation, error="told to"
            )
        )
        self.inbox.unbind(spec.address)
        self.be(msgspec.structs.replace(spec, generation=generation))
        self.say_ready(generation)

    def obey(self, *, clings: bool = False) -> None:
        while not isinstance(message := self.codec.decode(self.inbox.recv()), Shutdown):
            if isinstance(message, Reform) and not clings:
                self.reform(message.generation)
            if isinstance(message, Topology):
                self.send(
                    Heartbeat(
                        replica=self.spec.replica,
                        info=self.info(self.spec.generation),
                        progress=sum(len(replica.ranks) for replica in message.replicas),
                        has_work=False,
                    )
                )
        self.leave(0)

    def leave(self, exit_code: int) -> None:
        self.context.destroy(linger=2000)
        sys.exit(exit_code)


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> None:
    spec = LaunchSpec.from_json(sys.stdin.buffer.read())
    behaviours = spec.model.removeprefix("stub:").split(",")
    behave(Stub(spec), behaviours[spec.rank % len(behaviours)])


def behave(stub: Stub, behaviour: str) -> None:
    spec = stub.spec
    (Path("/dev/shm") / f"{spec.deployment_id}.{spec.name}").write_bytes(b"kv")
    say(f"{spec.name} starts")
    if behaviour == "crash":
        say("out of patience")
        os._exit(3)
    if behaviour == "vanish":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour in ("refuse", "fail"):
        is_user_error = behaviour == "refuse"
        error = f"{behaviour}: expected a model, came {spec.model}"
        stub.send(
            Failed(replica=spec.replica, rank=spec.rank, error=error, is_user_error=is_user_error)
        )
        stub.leave(2)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stub.send(LoadProgress(replica=spec.replica, rank=spec.rank, done_bytes=5, total_bytes=10))
    if behaviour == "stale":
        stub.say_ready(spec.generation + 1)
    elif behaviour != "hang" and not (behaviour == "mute" and spec.generation > FIRST_GENERATION):
        stub.say_ready(spec.generation)
    if behaviour in ("obey", "cling", "mute"):
        stub.obey(clings=behaviour == "cling")
    time.sleep(FOREVER_S)
