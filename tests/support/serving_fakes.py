"""A whole HTTP front over a scripted engine: everything but the ranks is the real code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
from opentelemetry.trace import NoOpTracer, Tracer

from headrace.core.clock import SystemClock
from headrace.core.errors import RequestError
from headrace.core.messages import (
    Abort,
    Heartbeat,
    Message,
    Output,
    Outputs,
    RankInfo,
    Ready,
    ReplicaInfo,
    Submit,
    TokenLogprob,
    Topology,
)
from headrace.core.requests import FinishReason, Ledger
from headrace.core.sharding import Role, Sharding
from headrace.serving.openai.app import Front, create_app
from headrace.serving.openai.config import ServedModel, ServingConfig
from headrace.serving.openai.dispatcher import Dispatcher
from headrace.serving.openai.metrics import ServingMetrics
from headrace.serving.openai.server import HttpServer
from headrace.serving.router.config import RegistryConfig
from headrace.serving.router.registry import Registry

MODEL = "tiny"
VOCAB_SIZE = 300
EDGE = "ipc://edge"
MAX_SEQUENCES = 64
CONTEXT_TOKENS = 512
NO_TRACER = NoOpTracer()


class ManualClock:
    """Time that moves when told to."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.time_s = now_s

    def now_s(self) -> float:
        return self.time_s


class ByteTokenizer:
    """Token i is byte i; ids from 256 on have no bytes."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def fewest_tokens(self, num_bytes: int) -> int:
        return num_bytes

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


class LineTemplate:
    """One line per message; remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        self.calls.append(
            {
                "messages": messages,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
                "variables": variables,
            }
        )
        if any(message["content"] == "refuse me" for message in messages):
            raise RequestError("the template refused", param="messages")
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


Script = Callable[[Submit], Iterator[Output]]


def say(submit: Submit, text: str, **last: Any) -> Iterator[Output]:
    """Play ``text`` byte by byte to every choice, cut at ``max_tokens``; then finish.

    Choices that were resumed go on behind what their client has.
    """
    data = text.encode()
    is_cut = len(data) > submit.params.max_tokens
    data = data[: submit.params.max_tokens]
    num_had = dict.fromkeys(range(submit.num_choices), 0)
    if submit.resumed:
        num_had = {each.choice: len(each.output_ids) for each in submit.resumed}
    for i, byte in enumerate(data):
        for choice in (choice for choice, had in num_had.items() if i >= had):
            is_last = i == len(data) - 1
            reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
            yield Output(
                request_id=submit.request_id,
                choice=choice,
                token_ids=[byte],
                text=chr(byte) if byte < 128 else "",
                logprobs=_logprobs(submit, byte),
                finish_reason=reason if is_last else None,
                ledger=Ledger(output_tokens=len(data), **last) if is_last else None,
            )


def _logprobs(submit: Submit, byte: int) -> list[TokenLogprob] | None:
    if not submit.params.logprobs:
        return None
    top = [(byte, -0.5), (0xF0, -1.5), (0x9F, -2.5), (0, float("-inf")), (0xC3, -3.5)]
    return [TokenLogprob(byte, -0.5, top[: submit.params.top_logprobs])]


def hello(submit: Submit) -> Iterator[Output]:
    """Say ``Hello!``, as the default script."""
    return say(submit, "Hello!")


def one_then_nothing(submit: Submit) -> Iterator[Output]:
    """Give one token and never finish: what runs until it is aborted."""
    yield Output(request_id=submit.request_id, choice=0, token_ids=[65], text="A")


@dataclass
class ScriptedEngine:
    """Stands for all ranks: plays ``script`` for each ``Submit``, one output per loop turn."""

    script: Script = hello
    address: str = EDGE
    submits: list[Submit] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    is_full: bool = False
    deliver: Callable[[Outputs], None] = lambda _: None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, address: str, message: Message) -> bool:
        if self.is_full:
            return False
        if isinstance(message, Submit):
            self.submits.append(message)
            self.addresses.append(address)
            task = asyncio.get_running_loop().create_task(self._play(message))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        if isinstance(message, Abort):
            self.aborts.append(message.request_id)
        self._changed.set()
        return True

    async def _play(self, submit: Submit) -> None:
        for output in self.script(submit):
            if submit.request_id in self.aborts:
                return
            await asyncio.sleep(0)
            self.deliver(Outputs(rank=0, outputs=[output]))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, at most 10 s, until a message made ``condition`` true."""
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def topology(
    *, prefill_ranks: int = 2, decode_ranks: int = 2, generation: int = 1, mono: bool = False
) -> Topology:
    """Return one prefill and one decode replica, or one mono replica."""

    def ranks(name: str, count: int) -> list[RankInfo]:
        return [
            RankInfo(rank=i, generation=generation, address=f"ipc://{name}.{i}.{generation}")
            for i in range(count)
        ]

    role, name = (Role.MONO, "mono0") if mono else (Role.DECODE, "decode0")
    decode = ReplicaInfo(
        name=name,
        role=role,
        sharding=Sharding(dp=decode_ranks, ep=decode_ranks),
        ranks=ranks(name, decode_ranks),
    )
    prefill = ReplicaInfo(
        name="prefill0",
        role=Role.PREFILL,
        sharding=Sharding(tp=prefill_ranks, ep=prefill_ranks),
        ranks=ranks("prefill0", prefill_ranks),
    )
    return Topology(replicas=[decode] if mono else [prefill, decode])


def re_forming(members: Topology, name: str, *, without: Sequence[int] = ()) -> Topology:
    """Return ``members`` while the replica of that name re-forms, some of its ranks being gone."""

    def changed(replica: ReplicaInfo) -> ReplicaInfo:
        if replica.name != name:
            return replica
        ranks = [info for info in replica.ranks if info.rank not in without]
        return msgspec.structs.replace(replica, ranks=ranks, is_up=False)

    return Topology(replicas=[changed(replica) for replica in members.replicas])


def beat(
    replica: str, rank: int, *, progress: int = 0, has_work: bool = False, **load: Any
) -> Heartbeat:
    """Return a heartbeat of generation 1 unless ``generation`` says otherwise."""
    info = RankInfo(rank=rank, generation=load.pop("generation", 1), address="")
    return Heartbeat(replica=replica, info=info, progress=progress, has_work=has_work, **load)


def ready(replica: str, rank: int, *, max_tokens: int, num_blocks: int = 1000) -> Ready:
    """Return the message of a rank that has loaded."""
    info = RankInfo(rank=rank, generation=1, address="")
    return Ready(
        replica=replica, info=info, num_blocks=num_blocks, block_size=16, max_tokens=max_tokens
    )


def beat_all(registry: Registry, members: Topology) -> None:
    """Let every rank of ``members`` give one idle sign of life."""
    for replica in members.replicas:
        for info in replica.ranks:
            registry.on_message(
                beat(
                    replica.name,
                    info.rank,
                    generation=info.generation,
                    free_blocks=100,
                    total_blocks=128,
                    counters={"headrace_steps_total": 7.0},
                )
            )


@dataclass
class Stack:
    """A running front: what tests reach into."""

    front: Front
    engine: ScriptedEngine
    registry: Registry
    template: LineTemplate
    client: httpx.AsyncClient
    url: str = ""

    def announce(self, members: Topology) -> None:
        """Tell the front who is there; ranks of replicas that are up give a sign of life."""
        for listener in (self.registry.on_message, self.front.dispatcher.on_message):
            listener(members)
        up = Topology(replicas=[replica for replica in members.replicas if replica.is_up])
        beat_all(self.registry, up)

    async def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        """Post a chat completion with one user message."""
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        body = {"model": MODEL, "messages": messages, **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        """Post a text completion."""
        body = {"model": MODEL, "prompt": prompt, **fields}
        return await self.client.post("/v1/completions", json=body)


def make_stack(
    script: Script = hello, *, clock: Any = None, tracer: Tracer = NO_TRACER, **config: Any
) -> Stack:
    """Build the front in this process, without a socket."""
    clock = clock or SystemClock()
    settings = ServingConfig(port=0, **config)
    registry = Registry(RegistryConfig(), clock=clock)
    members = topology()
    registry.on_message(members)
    beat_all(registry, members)
    engine, metrics, template = ScriptedEngine(script), ServingMetrics(), LineTemplate()
    dispatcher = Dispatcher(
        engine,
        registry,
        metrics=metrics,
        clock=clock,
        max_requests=settings.max_requests,
        max_backlog=settings.max_backlog,
        deadline_s=settings.deadline_s,
        max_retries=settings.max_retries,
    )
    engine.deliver = dispatcher.on_message
    front = Front(
        config=settings,
        model=ServedModel(
            name=MODEL,
            vocab_size=VOCAB_SIZE,
            max_model_tokens=CONTEXT_TOKENS,
            max_sequences=MAX_SEQUENCES,
        ),
        tokenizer=ByteTokenizer(),
        template=template,
        dispatcher=dispatcher,
        fleet=registry,
        metrics=metrics,
        tracer=tracer,
    )
    transport = httpx.ASGITransport(create_app(front), raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://front")
    return Stack(front, engine, registry, template, client)


@asynccontextmanager
async def served(script: Script = hello, **config: Any) -> AsyncIterator[Stack]:
    """Run the front on a loopback port."""
    stack = make_stack(script, **config)
    server = HttpServer(create_app(stack.front), stack.front.config)
    server.open()
    await server.start()
    stack.url = server.url
    stack.client = httpx.AsyncClient(base_url=server.url, timeout=20, trust_env=False)
    try:
        yield stack
    finally:
        await stack.client.aclose()
        stack.front.dispatcher.fail_all("the test is over")
        await server.stop()


def events(text: str) -> list[str]:
    """Return the data of every event of a stream, checking the framing."""
    assert text.endswith("\n\n")
    blocks = text[:-2].split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]
