"""A prefill rank: computes prompts and sends each layer's KV on as soon as it is written.

Every rank of the replica is a ``PrefillWorker``; the first is also the ``PrefillLead``, which
owns the queue and the block pool and orders the steps. The worker knows no queue, the lead
touches no tensor. Prefillers never sample.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.clock import Clock
from headrace.core.flight import Flight
from headrace.core.launch import EngineConfig
from headrace.core.messages import (
    CancelSession,
    Message,
    OpenSend,
    PrefillRequest,
    RunStep,
    SendDone,
    SequenceStep,
    SessionDone,
    SessionFailed,
    SessionStarted,
)
from headrace.core.plans import Chunk
from headrace.engine.backend import Backend, Row
from headrace.engine.prefill_gate import PrefillGate
from headrace.engine.prefill_job import Job
from headrace.kvcache.block_table import BlockTable, blocks_for, blocks_to_open
from headrace.kvcache.pool import BlockPool
from headrace.kvcache.prefix import PrefixHit
from headrace.scheduler.plan import PromptWork, plan_prefill
from headrace.transfer.sender import SendSessions

Send = Callable[[str, Message], object]

# Addresses of lost decode ranks that are remembered; only the newest may still be heard of.
MAX_GONE = 1024


class PrefillWorker:
    """One rank's part: runs ordered steps and feeds its send sessions.

    Args:
        backend: What the steps run on.
        senders: This rank's send sessions.
        send: Sends a message to a control address.
        flight: Told of every step and layer.
    """

    def __init__(
        self, *, backend: Backend, senders: SendSessions, send: Send, flight: Flight | None = None
    ) -> None:
        self.steps = 0
        self._flight = flight or Flight()
        self._backend = backend
        self._senders = senders
        self._send = send
        self._requests: dict[str, PrefillRequest] = {}

    @property
    def num_sessions(self) -> int:
        """Sessions not yet drained."""
        return len(self._senders)

    @property
    def peers(self) -> set[str]:
        """Decode ranks that wait for KV from here."""
        # Read by the pulse's thread: the copy is one step of the interpreter.
        return {request.reply_to for request in list(self._requests.values())}

    def open(self, order: OpenSend) -> bool:
        """Take part in a session, once; send what is cached. False if it cannot be sent."""
        request = order.request
        if request.session_id in self._requests:
            return True
        if not self._senders.open(request, block_ids=order.block_ids):
            return False
        self._requests[request.session_id] = request
        self._submit_all(request.session_id, stop=order.cached_tokens)
        return True

    def run(self, order: RunStep, *, before_last: Callable[[], None] | None = None) -> None:
        """Run one step; each layer is sent while the next ones compute.

        ``before_last`` is called when the last layer's KV is computed and before it is sent.
        """
        rows = [
            Row(
                token_ids=each.token_ids,
                start=each.chunk.start,
                block_ids=each.block_ids,
                wants_logits=False,
            )
            for each in order.sequences
        ]
        chunks = [each.chunk for each in order.sequences]
        self._flight.enter_step(order.step)
        last = len(self._backend.schemas) - 1

        def on_layer(layer: int) -> None:
            if layer == last and before_last is not None:
                before_last()
            self._submit(layer, chunks)

        self._backend.run(rows, on_layer=on_layer)
        self.steps += 1

    def cancel(self, message: CancelSession) -> None:
        """Stop sending a session; quiet is said once pending writes drained."""
        self._senders.cancel(message)

    def forget_peer(self, address: str) -> None:
        """Give up all sessions of a decode rank that is gone for good."""
        self._senders.forget_peer(address)

    def poll(self) -> None:
        """Follow pending writes and tell whoever must know."""
        for outgoing in self._senders.poll():
            self._send(outgoing.address, outgoing.message)
        for session_id in [one for one in self._requests if self._senders.is_drained(one)]:
            del self._requests[session_id]

    def _submit(self, layer: int, chunks: list[Chunk]) -> None:
        self._flight.enter_layer(layer)
        for chunk in chunks:
            self._senders.submit(
                chunk.sequence_id,
                layer=layer,
                start=chunk.start,
                stop=chunk.start + chunk.num_tokens,
            )

    def _submit_all(self, session_id: str, *, stop: int) -> None:
        if stop:
            for layer in range(len(self._backend.schemas)):
                self._senders.submit(session_id, layer=layer, start=0, stop=stop)


class PrefillLead:
    """Queue, blocks and step orders of a prefill replica.

    Args:
        config: The engine's knobs.
        worker: This rank's own worker; gets every order that the followers get.
        pool: The replica's blocks: all ranks use equal ids.
        gate: Judges what is let in.
        num_ranks: Ranks of the replica.
        generation: This rank's generation, for refusals.
        tell_followers: Sends a message to every other rank of the replica.
        send: Sends a message to a control address.
        clock: Time.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        worker: PrefillWorker,
        pool: BlockPool,
        gate: PrefillGate,
        num_ranks: int,
        generation: int,
        tell_followers: Callable[[Message], None],
        send: Send,
        clock: Clock,
    ) -> None:
        self._config = config
        self._worker = worker
        self._pool = pool
        self._gate = gate
        self._num_ranks = num_ranks
        self._generation = generation
        self._tell_followers = tell_followers
        self._send = send
        self._clock = clock
        self._waiting: dict[str, Job] = {}
        self._computing: dict[str, Job] = {}
        self._draining: dict[str, Job] = {}
        self._gone: dict[str, None] = {}
        self._next_order = 0
        self._step = 0
        self.ended = 0

    @property
    def num_waiting(self) -> int:
        """Sessions without blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sessions with blocks."""
        return len(self._computing) + len(self._draining)

    @property
    def waiting_peers(self) -> set[str]:
        """Decode ranks with sessions in the line: they must hear that this replica lives."""
        # Read by the pulse's thread: the copy is one step of the interpreter.
        return {job.request.reply_to for job in list(self._waiting.values())}

    @property
    def has_work(self) -> bool:
        """Whether any session is unfinished."""
        return bool(self._waiting or self._computing or self._draining)

    # -- messages ------------------------------------------------------------------------

    def on_request(self, request: PrefillRequest) -> None:
        """Queue a session, or refuse it if this replica could never serve it.

        What a decode rank asked before it was lost may come after the news. A repeat of a request
        is ignored: its session is under way, or its blocks belong to somebody else by now.
        """
        if request.reply_to in self._gone or not self._gate.is_new(request.session_id):
            return
        self._gate.remember(request.session_id)
        reason = self._gate.refusal(request)
        if reason:
            self._refuse(request, reason)
            return
        job = Job(request=request, order=self._next_order, arrived_s=self._clock.now_s())
        self._next_order += 1
        self._waiting[request.session_id] = job

    def on_cancel(self, message: CancelSession) -> None:
        """Stop a session on every rank; each says quiet to the decoder by itself."""
        self._gate.remember(message.session_id)
        self.ended += self._waiting.pop(message.session_id, None) is not None
        running = self._computing.pop(message.session_id, None)
        self._tell(message)
        if running is not None:
            self._drain(running)

    def on_send_done(self, message: SendDone) -> None:
        """One rank will read a session's blocks no more; after the last they are free."""
        job = self._computing.get(message.session_id) or self._draining.get(message.session_id)
        if job is None:
            return
        job.draining.discard(message.rank)
        if not job.draining and message.session_id in self._draining:
            del self._draining[message.session_id]
            if job.table is not None:
                job.table.release()
            self.ended += 1

    def forget_peer(self, address: str) -> None:
        """Drop all sessions of a decode rank that is gone for good; nobody is left to be told."""
        self._gone[address] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        for session_id, job in [*self._waiting.items(), *self._computing.items()]:
            if job.request.reply_to != address:
                continue
            if self._waiting.pop(session_id, None):
                self.ended += 1
            else:
                self._drain(self._computing.pop(session_id))

    # -- steps ---------------------------------------------------------------------------

    def advance(self) -> None:
        """Give blocks to whoever is next in line, in order of arrival."""
        for job in list(self._waiting.values()):
            if not self._start(job):
                break

    @property
    def wants_step(self) -> bool:
        """Whether any prompt token is to be computed."""
        return bool(self._computing)

    def step(self) -> None:
        """Plan one step, order it on every rank, and run it here."""
        started_s = self._clock.now_s()
        chunks = plan_prefill(
            [self._work(job) for job in self._computing.values()],
            max_tokens=self._config.max_step_tokens,
            free_blocks=self._pool.num_free,
            block_size=self._pool.block_size,
        )
        jobs = [self._computing[chunk.sequence_id] for chunk in chunks]
        self._step += 1
        pairs = list(zip(jobs, chunks, strict=True))
        order = RunStep(step=self._step, sequences=[self._sequence(*pair) for pair in pairs])
        ending = [job for job, chunk in pairs if job.num_missing_tokens == chunk.num_tokens]
        # Followers first, since this rank's own part blocks.
        self._tell_followers(order)
        self._worker.run(order, before_last=lambda: self._say_done(ending, started_s))
        step_s = self._clock.now_s() - started_s
        for job, chunk in pairs:
            self._account(job, chunk, step_s)

    def _tell(self, message: Message) -> bool:
        """Give one order to all ranks, the followers first; return whether it is taken, by all."""
        self._tell_followers(message)
        match message:
            case OpenSend():
                return self._worker.open(message)
            case CancelSession():
                self._worker.cancel(message)
        return True

    def _start(self, job: Job) -> bool:
        hit = self._full_blocks(self._pool.match(job.request.token_ids))
        needed = blocks_to_open(self._pool, hit, job.num_prompt_tokens)
        if needed > self._pool.num_free:
            return False
        job.table = BlockTable.open(self._pool, hit, job.num_prompt_tokens)
        if job.table is None:
            return False
        session_id = job.request.session_id
        del self._waiting[session_id]
        job.draining = set(range(self._num_ranks))
        self._computing[session_id] = job
        self._send(
            job.request.reply_to,
            SessionStarted(
                session_id=session_id,
                cached_tokens=job.table.num_tokens,
                queue_s=self._clock.now_s() - job.arrived_s,
            ),
        )
        order = OpenSend(
            request=job.request,
            block_ids=job.table.block_ids,
            cached_tokens=job.table.num_tokens,
        )
        if not self._tell(order):
            del self._computing[session_id]
            self._drain(job)
        elif not job.num_missing_tokens:
            self._say_done([job], self._clock.now_s())
            self._finish(job)
        return True

    def _full_blocks(self, hit: PrefixHit) -> PrefixHit:
        """Leave a block that would be used in part: nothing is ever written behind it here."""
        num_full = hit.num_tokens // self._pool.block_size
        return PrefixHit(hit.block_ids[:num_full], num_full * self._pool.block_size)

    def _work(self, job: Job) -> PromptWork:
        table = job.table
        if table is None:
            raise AssertionError("a computing session without blocks")
        return PromptWork(
            sequence_id=job.request.session_id,
            order=job.order,
            num_computed_tokens=table.num_tokens,
            num_remaining_tokens=job.num_missing_tokens,
            num_blocks=len(table.block_ids),
        )

    def _sequence(self, job: Job, chunk: Chunk) -> SequenceStep:
        stop = chunk.start + chunk.num_tokens
        blocks = job.table.block_ids if job.table is not None else []
        return SequenceStep(
            chunk=chunk,
            token_ids=job.request.token_ids[chunk.start : stop],
            block_ids=blocks[: blocks_for(stop, self._pool.block_size)],
        )

    def _account(self, job: Job, chunk: Chunk, step_s: float) -> None:
        job.compute_s += step_s
        if job.table is not None:
            job.table.advance(chunk.num_tokens)
            job.table.publish(job.request.token_ids)
        if not job.num_missing_tokens:
            self._finish(job)

    def _say_done(self, jobs: list[Job], started_s: float) -> None:
        """Tell decoders what their prompts cost, before the last bytes can make them whole."""
        step_s = self._clock.now_s() - started_s
        for job in jobs:
            session_id, compute_s = job.request.session_id, job.compute_s + step_s
            done = SessionDone(session_id=session_id, compute_s=compute_s)
            self._send(job.request.reply_to, done)

    def _finish(self, job: Job) -> None:
        """The last chunk is computed: what is left is to drain."""
        del self._computing[job.request.session_id]
        self._drain(job)

    def _drain(self, job: Job) -> None:
        self._draining[job.request.session_id] = job
        if not job.draining:
            self.on_send_done(SendDone(session_id=job.request.session_id, rank=0))

    def _refuse(self, request: PrefillRequest, reason: str) -> None:
        self.ended += 1
        refused = SessionFailed(
            session_id=request.session_id,
            rank=0,
            generation=self._generation,
            reason=reason,
            is_final=True,
        )
        self._send(request.reply_to, refused)
