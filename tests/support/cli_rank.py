"""A rank's process without an engine that answers requests: it says what it was asked, or dies.

The text of a request is its prompt, spelled back one character an output. A prompt that contains
``die!`` kills the rank when half of the answer is out; ``wait!`` is never answered to the end.
"""

import os
import signal
import sys

from headrace.core.launch import LaunchSpec
from headrace.core.messages import Heartbeat, Output, Outputs, Shutdown, Submit, Topology
from headrace.core.requests import FinishReason, Ledger
from headrace.core.sharding import Role
from headrace.transfer.control import ControlSocket
from tests.support.cluster_stub import Stub


def answering_command() -> tuple[str, ...]:
    """Command line that runs this file with the paths of the running test."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import main; main()"
    return (sys.executable, "-c", code)


class AnsweringRank(Stub):
    """Ready at once; beats once it knows the others; answers until it is told to leave."""

    def __init__(self, spec: LaunchSpec) -> None:
        super().__init__(spec)
        self.replies = ControlSocket(spec.address + ".out", self.codec)

    def run(self) -> None:
        self.replies.open()
        self.say_ready(self.spec.generation)
        while not isinstance(message := self.codec.decode(self.inbox.recv()), Shutdown):
            if isinstance(message, Topology):
                self.beat()
            elif isinstance(message, Submit):
                self.answer(message)
        self.replies.close(linger_s=1.0)
        self.leave(0)

    def answer(self, submit: Submit) -> None:
        if self.spec.role is Role.PREFILL:
            raise AssertionError("a prefill rank was sent a request")
        text = bytes(token for token in submit.prompt_ids if token < 256).decode()
        for place, letter in enumerate(text):
            self.reply(
                submit, Output(request_id=submit.request_id, choice=0, token_ids=[1], text=letter)
            )
            if "die!" in text and place == len(text) // 2:
                self.replies.close(linger_s=1.0)
                os.kill(os.getpid(), signal.SIGKILL)
            if "wait!" in text and place == len(text) // 2:
                return
        ledger = Ledger(
            output_tokens=len(text),
            transferred_tokens=len(submit.prompt_ids) - 1,
            computed_tokens=1,
        )
        ledger.prefill_replica = submit.prefill_replica
        self.reply(
            submit,
            Output(
                request_id=submit.request_id,
                choice=0,
                token_ids=[],
                finish_reason=FinishReason.STOP,
                ledger=ledger,
            ),
        )

    def reply(self, submit: Submit, output: Output) -> None:
        self.replies.send(submit.reply_to, Outputs(rank=self.spec.rank, outputs=[output]))

    def beat(self) -> None:
        self.send(
            Heartbeat(
                replica=self.spec.replica,
                info=self.info(self.spec.generation),
                progress=1,
                has_work=False,
            )
        )


def main() -> None:
    AnsweringRank(LaunchSpec.from_json(sys.stdin.buffer.read())).run()
