"""A whole deployment, its ranks threads of this process or processes of their own: nothing faked.

The test is supervisor and edge at once: it starts the ranks, tells them of each other, submits
requests and collects outputs over the same control sockets as the real ones.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from headrace.core.codec import Codec
from headrace.core.errors import HeadraceError
from headrace.core.launch import EngineConfig, LaunchSpec
from headrace.core.messages import (
    Abort,
    AnyMessage,
    Failed,
    Heartbeat,
    Output,
    Outputs,
    RankInfo,
    Ready,
    ReplicaInfo,
    Shutdown,
    Submit,
    Topology,
)
from headrace.core.requests import FinishReason, SamplingParams
from headrace.core.sharding import Role, Sharding
from headrace.engine.rank import run_rank
from headrace.transfer.control import ControlSocket

START_TIMEOUT_S = 60.0
REPLY_TIMEOUT_S = 60.0


class EngineDeployment:
    """Replicas of the given shardings on this machine.

    Args:
        model: Model folder or ``replay:FILE``.
        decode: Sharding of the decode (or, without ``prefill``, mono) replica.
        prefill: Shardings of the prefill replicas, none for a mono deployment; one or several.
        engine: Knobs of the decode ranks, and of the prefill ranks without ``prefill_engine``.
        prefill_engine: Knobs of the prefill ranks.
        transport: How KV moves.
        as_processes: One process a rank, as in production; threads of this one otherwise.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        decode: Sharding | None = None,
        prefill: Sharding | Sequence[Sharding] | None = None,
        engine: EngineConfig | None = None,
        prefill_engine: EngineConfig | None = None,
        transport: str = "shm",
        as_processes: bool = False,
    ) -> None:
        self.outputs: defaultdict[str, list[Output]] = defaultdict(list)
        self.heartbeats: dict[tuple[str, int], Heartbeat] = {}
        self.failures: list[Failed] = []
        self._model = str(model)
        self._transport = transport
        engine = engine or EngineConfig()
        prefills = [prefill] if isinstance(prefill, Sharding) else list(prefill or ())
        role = Role.DECODE if prefills else Role.MONO
        self._has_prefill = bool(prefills)
        self._replicas = [
            *(
                (f"prefill{index}", Role.PREFILL, sharding, prefill_engine or engine)
                for index, sharding in enumerate(prefills)
            ),
            (f"{role}0", role, decode or Sharding(), engine),
        ]
        self._id = f"hrtest-{secrets.token_hex(4)}"
        self._run_dir = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
        self._key = secrets.token_hex(16)
        self._address = f"ipc://{self._run_dir}/edge"
        self._control = ControlSocket(self._address, Codec(bytes.fromhex(self._key)))
        self._as_processes = as_processes
        self._threads: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors: list[BaseException] = []
        self.specs = self._make_specs()
        self._next_id = 0

    def _make_specs(self) -> list[LaunchSpec]:
        num_ranks = sum(sharding.num_ranks for _, _, sharding, _ in self._replicas)
        return [
            LaunchSpec(
                deployment_id=self._id,
                run_dir=str(self._run_dir),
                key=self._key,
                model=self._model,
                replica=name,
                role=role,
                sharding=sharding,
                rank=rank,
                generation=1,
                ranks_on_host=num_ranks,
                supervisor=self._address,
                transport=self._transport,
                engine=engine,
            )
            for name, role, sharding, engine in self._replicas
            for rank in range(sharding.num_ranks)
        ]

    def __enter__(self) -> EngineDeployment:
        self._control.open()
        for spec in self.specs:
            self._start(spec)
        ready: dict[tuple[str, int], Ready] = {}
        self._pump_until(lambda: len(ready) == len(self.specs), START_TIMEOUT_S, ready=ready)
        self.announce()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for spec in self.specs:
            self._control.send(spec.address, Shutdown())
        for thread in self._threads:
            thread.join(START_TIMEOUT_S)
        codes = [self._end(process) for process in self._processes]
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        self._control.close()
        shutil.rmtree(self._run_dir)
        left = [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(self._id)]
        if error is None:
            assert alive == [], f"ranks that did not stop: {alive}"
            assert not any(codes), f"exit codes of the ranks: {codes}"
            assert left == [], f"segments left behind: {left}"
            assert self._errors == [], self._errors

    def announce(self) -> None:
        """Tell every rank the topology."""
        by_replica: dict[str, list[LaunchSpec]] = {}
        for spec in self.specs:
            by_replica.setdefault(spec.replica, []).append(spec)
        topology = Topology(
            replicas=[
                ReplicaInfo(
                    name=name,
                    role=specs[0].role,
                    sharding=specs[0].sharding,
                    ranks=[
                        RankInfo(rank=spec.rank, generation=1, address=spec.address)
                        for spec in specs
                    ],
                )
                for name, specs in by_replica.items()
            ]
        )
        for spec in self.specs:
            self._control.send(spec.address, topology)

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        rank: int = 0,
        prefill: int = 0,
        num_choices: int = 1,
        trace: bool = False,
        deadline_s: float = 30.0,
    ) -> str:
        """Send a request to decode rank ``rank``, naming a prefill replica, and return its id."""
        request_id = f"r{self._next_id}"
        decoders = [spec for spec in self.specs if spec.role is not Role.PREFILL]
        self._control.send(
            decoders[rank % len(decoders)].address,
            Submit(
                request_id=request_id,
                reply_to=self._address,
                prompt_ids=list(prompt_ids),
                params=params,
                num_choices=num_choices,
                prefill_replica=f"prefill{prefill}" if self._has_prefill else "",
                ordinal=self._next_id,
                trace=trace,
                deadline_s=deadline_s,
            ),
        )
        self._next_id += 1
        return request_id

    def abort(self, request_id: str) -> None:
        """Abort a request on every decode rank."""
        for spec in self.specs:
            if spec.role is not Role.PREFILL:
                self._control.send(spec.address, Abort(request_id=request_id))

    def finish(self, *request_ids: str, num_choices: int = 1) -> list[list[Output]]:
        """Wait until requests ended and return their outputs in order of arrival."""

        def is_over() -> bool:
            return all(
                sum(out.finish_reason is not None for out in self.outputs[request_id])
                == num_choices
                for request_id in request_ids
            )

        self._pump_until(is_over, REPLY_TIMEOUT_S)
        return [self.outputs[request_id] for request_id in request_ids]

    def run(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, trace: bool = False
    ) -> list[list[Output]]:
        """Submit prompts at once, spread over the decode ranks, and wait for all."""
        ids = [
            self.submit(prompt, params, rank=index, trace=trace)
            for index, prompt in enumerate(prompts)
        ]
        return self.finish(*ids)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Pump messages until ``condition()`` holds."""
        self._pump_until(condition, timeout_s)

    def wait_idle(self) -> None:
        """Wait until every rank says that all its blocks can be handed out and nothing waits."""
        self.heartbeats.clear()

        def is_idle() -> bool:
            beats = self.heartbeats.values()
            return len(beats) == len(self.specs) and all(
                not beat.has_work and beat.free_blocks == beat.total_blocks for beat in beats
            )

        self._pump_until(is_idle, REPLY_TIMEOUT_S)

    def _start(self, spec: LaunchSpec) -> None:
        if not self._as_processes:
            thread = threading.Thread(target=self._run, args=(spec,), name=spec.name, daemon=True)
            thread.start()
            self._threads.append(thread)
            return
        source = Path(__file__).parents[2] / "src"
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.engine"],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(source)},
        )
        assert process.stdin is not None
        process.stdin.write(spec.to_json())
        process.stdin.close()
        self._processes.append(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _run(self, spec: LaunchSpec) -> None:
        try:
            run_rank(spec)
        except HeadraceError as error:
            self._errors.append(error)
        except BaseException as error:
            self._errors.append(error)
            raise

    def _pump_until(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        *,
        ready: dict[tuple[str, int], Ready] | None = None,
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if self._errors:
                raise AssertionError(f"a rank ended: {self._errors[0]!r}") from self._errors[0]
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                have = {name: len(outputs) for name, outputs in self.outputs.items()}
                raise AssertionError(f"nothing more came; outputs by request: {have}")
            self._control.wait(min(left_s, 0.2))
            for message in self._control.recv_all():
                self._take(message, ready)

    def _take(self, message: AnyMessage, ready: dict[tuple[str, int], Ready] | None) -> None:
        match message:
            case Outputs():
                for output in message.outputs:
                    self.outputs[output.request_id].append(output)
            case Ready() if ready is not None:
                ready[(message.replica, message.info.rank)] = message
            case Heartbeat():
                self.heartbeats[(message.replica, message.info.rank)] = message
            case Failed():
                self.failures.append(message)


def tokens(outputs: Sequence[Output], choice: int = 0) -> list[int]:
    """Return the token ids of one choice."""
    return [token for out in outputs if out.choice == choice for token in out.token_ids]


def text(outputs: Sequence[Output], choice: int = 0) -> str:
    """Return the joined text of one choice."""
    return "".join(out.text for out in outputs if out.choice == choice)


def logits(outputs: Sequence[Output]) -> np.ndarray:
    """Return the traced logits [steps, V] of a request."""
    rows = [np.frombuffer(out.trace.logits, np.float32) for out in outputs if out.trace is not None]
    return np.stack(rows)


def last(outputs: Sequence[Output], choice: int = 0) -> Output:
    """Return the output that ended a choice."""
    (end,) = [out for out in outputs if out.choice == choice and out.finish_reason is not None]
    return end


def is_error(output: Output) -> bool:
    """Whether a request ended with an error."""
    return output.finish_reason is FinishReason.ERROR
