"""One decode rank and one prefill replica in a single thread, on a scripted network and clock.

Everything is the engine's own but three things: the model (the replay back end), the network
(``transfer.fake``) and the control plane (a mailbox per address). Nothing moves unless ``turn``
is called, so every interleaving is repeatable.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.core.launch import EngineConfig
from headrace.core.layouts import CacheLayout
from headrace.core.messages import (
    Abort,
    CancelSession,
    Heartbeat,
    Message,
    OpenSend,
    Output,
    Outputs,
    PrefillRequest,
    RankInfo,
    ReplicaInfo,
    Resumed,
    RunStep,
    SendDone,
    Submit,
    Topology,
)
from headrace.core.requests import SamplingParams
from headrace.core.sharding import Role, Sharding, split_range
from headrace.engine.decode import DecodeRank
from headrace.engine.emitter import Emitter
from headrace.engine.prefill import PrefillLead, PrefillWorker
from headrace.engine.prefill_gate import PrefillGate
from headrace.engine.receiving import Receiving
from headrace.engine.replay import ReplayBackend, Script
from headrace.engine.stepper import Stepper
from headrace.kvcache.pool import BlockPool
from headrace.scheduler.admission import Limits
from headrace.transfer.engine import TransferEngine
from headrace.transfer.fake import FakeTransport
from headrace.transfer.fake_network import FakeNetwork
from headrace.transfer.fake_network import Script as NetworkScript
from headrace.transfer.sender import SendSessions
from tests.support.engine_parts import (
    EOS,
    NUM_KV_HEADS,
    SCHEMAS,
    VOCAB_SIZE,
    ManualClock,
    PrefillRank,
    make_backend,
    minted,
)
from tests.support.text_tokenizers import byte_tokenizer


@dataclass(kw_only=True)
class World:
    """See the module. ``tp`` 0 makes the decode rank a ``mono`` one."""

    tp: int = 2
    num_blocks: int = 32
    prefill_blocks: int = 32
    config: EngineConfig = field(default_factory=EngineConfig)
    scripts: Sequence[Script] = (Script(tokens=[65 + index % 26 for index in range(200)]),)
    network_script: NetworkScript = field(default_factory=NetworkScript)
    max_model_tokens: int = 4096
    backend_kind: type[ReplayBackend] = ReplayBackend
    stepper_kind: type[Stepper] = Stepper

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.mail: defaultdict[str, list[Message]] = defaultdict(list)
        self.sent: list[tuple[str, Message]] = []
        self.outputs: defaultdict[str, list[Output]] = defaultdict(list)
        self.network = FakeNetwork(self.network_script)
        self.prefill: list[PrefillRank] = []
        self.lead: PrefillLead | None = None
        self.decode_generation = self.prefill_generation = 1
        self._make_decode()
        if self.tp:
            self._make_prefill()
            self.announce()

    def send(self, address: str, message: Message) -> None:
        self.sent.append((address, message))
        self.mail[address].append(message)

    # -- making --------------------------------------------------------------------------

    def layout(self, num_blocks: int, heads: range = range(NUM_KV_HEADS)) -> CacheLayout:
        return CacheLayout(
            layers=SCHEMAS,
            first_head=heads.start,
            num_heads=len(heads),
            num_blocks=num_blocks,
            block_size=self.config.block_size,
        )

    def _pool(self, num_blocks: int) -> BlockPool:
        return BlockPool(
            num_blocks,
            self.config.block_size,
            pinned_fraction=self.config.pinned_fraction,
            prefix_cache=self.config.prefix_cache,
        )

    def _make_decode(self) -> None:
        generation = self.decode_generation
        self.decode_address = minted("decode", generation)
        self.transfer = self._engine("decode", rank=0, generation=generation)
        layout = self.layout(self.num_blocks)
        self.region, descriptor = self.transfer.allocate(layout)
        self.pool = self._pool(self.num_blocks)
        self.receiving = None
        if self.tp:
            self.receiving = Receiving(
                engine=self.transfer,
                region=descriptor,
                name=f"decode.{generation}",
                address=self.decode_address,
                send=self.send,
                clock=self.clock,
                timeout_s=self.config.session_timeout_s,
            )
        self.backend = make_backend(
            layout, self.region.buffer, self.scripts, kind=self.backend_kind
        )
        self.rank = DecodeRank(
            config=self.config,
            pool=self.pool,
            stepper=self.stepper_kind(self.backend),
            receiving=self.receiving,
            emitter=Emitter(
                rank=0,
                eos_token_ids=(EOS,),
                max_model_tokens=self.max_model_tokens,
                send=self.send,
            ),
            tokenizer=byte_tokenizer(),
            clock=self.clock,
            limits=Limits(
                max_model_tokens=self.max_model_tokens,
                num_blocks=self.num_blocks,
                block_size=self.config.block_size,
                max_sequences=self.config.max_sequences,
            ),
        )

    def _make_prefill(self) -> None:
        generation = self.prefill_generation
        self.prefill = []
        layouts = [
            self.layout(self.prefill_blocks, split_range(NUM_KV_HEADS, self.tp, rank))
            for rank in range(self.tp)
        ]
        self.prefill_pool = self._pool(self.prefill_blocks)
        for rank, layout in enumerate(layouts):
            transfer = self._engine(f"prefill{rank}", rank=rank, generation=generation)
            region, _ = transfer.allocate(layout)
            senders = SendSessions(
                transfer,
                region=region,
                sources=layouts,
                rank=rank,
                generation=generation,
                lead_address=self.prefill_address(0),
            )
            worker = PrefillWorker(
                backend=make_backend(layout, region.buffer, self.scripts, kind=self.backend_kind),
                senders=senders,
                send=self.send,
            )
            self.prefill.append(PrefillRank(transfer, worker, senders))
        self.lead = PrefillLead(
            config=self.config,
            worker=self.prefill[0].worker,
            pool=self.prefill_pool,
            gate=PrefillGate(
                layouts=layouts,
                vocab_size=VOCAB_SIZE,
                max_model_tokens=self.max_model_tokens,
            ),
            num_ranks=self.tp,
            generation=generation,
            tell_followers=self._tell_followers,
            send=self.send,
            clock=self.clock,
        )

    def prefill_address(self, rank: int) -> str:
        return minted(f"prefill{rank}", self.prefill_generation)

    def _engine(self, name: str, *, rank: int, generation: int) -> TransferEngine:
        transport = FakeTransport(
            self.network, name=minted(name, generation), rank=rank, generation=generation
        )
        engine = TransferEngine(transport, rank=rank, generation=generation)
        engine.open()
        # Worlds are many and short: their descriptors go with them.
        weakref.finalize(self, engine.close)
        return engine

    def _tell_followers(self, message: Message) -> None:
        for rank in range(1, self.tp):
            self.send(self.prefill_address(rank), message)

    def announce(
        self,
        *,
        with_prefill: bool = True,
        ranks: Sequence[int] | None = None,
        is_up: bool = True,
    ) -> None:
        """Tell the decode rank who is there: of the prefill replica, ``ranks`` or all."""
        replica = ReplicaInfo(
            name="prefill",
            role=Role.PREFILL,
            sharding=Sharding(tp=self.tp),
            ranks=[
                RankInfo(
                    rank=rank,
                    generation=self.prefill_generation,
                    address=self.prefill_address(rank),
                )
                for rank in (range(self.tp) if ranks is None else ranks)
            ],
            is_up=is_up,
        )
        if self.receiving is not None:
            self.receiving.on_topology(Topology(replicas=[replica] if with_prefill else []))

    # -- running -------------------------------------------------------------------------

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        num_choices: int = 1,
        request_id: str = "",
        deadline_s: float = 30.0,
        trace: bool = False,
        prefill_replica: str = "prefill",
        resumed: Sequence[Resumed] = (),
        num_retries: int = 0,
        max_retries: int = 2,
        **settings: object,
    ) -> str:
        """Give the decode rank a request; greedy unless ``params`` says otherwise."""
        request_id = request_id or f"r{len(self.outputs)}"
        settings = {"max_tokens": 8, "temperature": 0.0} | settings
        self.outputs[request_id] = []
        self.rank.submit(
            Submit(
                request_id=request_id,
                reply_to="edge",
                prompt_ids=list(prompt_ids),
                params=params or msgspec.convert(settings, SamplingParams),
                num_choices=num_choices,
                prefill_replica=prefill_replica if self.tp else "",
                deadline_s=deadline_s,
                trace=trace,
                resumed=list(resumed),
                num_retries=num_retries,
                max_retries=max_retries,
            )
        )
        return request_id

    def abort(self, request_id: str) -> None:
        self.rank.abort(Abort(request_id=request_id))

    def turn(self, *, seconds: float = 0.0, prefill: bool = True) -> None:
        """Let everybody do what their loops do once."""
        self.clock.time_s += seconds
        if prefill and self.lead is not None:
            self._turn_prefill(self.lead)
        self.pump()
        self._turn_decode()
        for message in self.mail.pop("edge", []):
            assert isinstance(message, Outputs)
            for output in message.outputs:
                self.outputs[output.request_id].append(output)

    def pump(self) -> None:
        """Let whatever is due land and ring."""
        self.network.pump()

    def _turn_decode(self) -> None:
        for message in self.mail.pop(self.decode_address, []):
            assert self.receiving is not None
            self.receiving.on_message(message)
        if self.receiving is not None:
            self.receiving.poll()
        self.rank.advance()
        if self.rank.wants_step:
            self.rank.step()

    def _turn_prefill(self, lead: PrefillLead) -> None:
        self._take_lead_mail(lead)
        for rank in self.prefill:
            rank.transfer.poll()
            rank.worker.poll()
        lead.advance()
        if lead.wants_step:
            lead.step()
        for number in range(1, self.tp):
            for message in self.mail.pop(self.prefill_address(number), []):
                self._take_follower(self.prefill[number].worker, message)

    def _take_lead_mail(self, lead: PrefillLead) -> None:
        for message in self.mail.pop(self.prefill_address(0), []):
            match message:
                case PrefillRequest():
                    lead.on_request(message)
                case CancelSession():
                    lead.on_cancel(message)
                case SendDone():
                    lead.on_send_done(message)
                case _:
                    raise AssertionError(message)

    def _take_follower(self, worker: PrefillWorker, message: Message) -> None:
        match message:
            case OpenSend():
                worker.open(message)
            case RunStep():
                worker.run(message)
            case CancelSession():
                worker.cancel(message)
            case _:
                raise AssertionError(message)

    def heartbeat(self, rank: int, progress: int, **counters: float) -> None:
        """Deliver a sign of life of a prefill rank."""
        info = RankInfo(rank=rank, generation=1, address=f"prefill{rank}")
        self.mail["decode"].append(
            Heartbeat(
                replica="prefill",
                info=info,
                progress=progress,
                has_work=True,
                counters=counters,
            )
        )

    def run(self, *request_ids: str, num_choices: int = 1, max_turns: int = 2000) -> None:
        """Turn until the requests ended."""
        for _ in range(max_turns):
            if all(self.num_ended(one) >= num_choices for one in request_ids):
                return
            self.turn()
        raise AssertionError(f"no end after {max_turns} turns: {dict(self.outputs)}")

    def settle(self, turns: int = 20) -> None:
        """Turn a little longer, so that cancelled sessions drain."""
        for _ in range(turns):
            self.turn()

    def num_ended(self, request_id: str) -> int:
        return sum(out.finish_reason is not None for out in self.outputs[request_id])

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        outputs = self.outputs[request_id]
        return [token for out in outputs if out.choice == choice for token in out.token_ids]

    def text(self, request_id: str, choice: int = 0) -> str:
        return "".join(out.text for out in self.outputs[request_id] if out.choice == choice)

    def last(self, request_id: str, choice: int = 0) -> Output:
        (end,) = [
            out
            for out in self.outputs[request_id]
            if out.choice == choice and out.finish_reason is not None
        ]
        return end

    def check_idle(self) -> None:
        """Every block is back, on both sides, and nobody waits."""
        for pool in (self.pool, *([self.prefill_pool] if self.tp else [])):
            pool.check_invariants()
            assert pool.is_idle, (pool.num_free, pool.num_blocks, pool.num_quarantined)
        assert not self.rank.has_work
        assert self.receiving is None or len(self.receiving) == 0
        assert self.lead is None or not self.lead.has_work
