"""A decode or mono rank: admits requests, has their KV brought, decodes, and says when they end.

The rank gets a request first. It takes blocks for the whole prompt, asks a prefiller for the KV
it lacks (or computes it here, in ``mono``), and runs the last prompt token as an ordinary decode
step. All that decides a sequence's fate happens here, whether or not prefill was elsewhere.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.core.clock import Clock
from headrace.core.errors import RequestError
from headrace.core.launch import EngineConfig
from headrace.core.messages import Abort, Submit
from headrace.engine.emitter import Emitter
from headrace.engine.receiving import Failure, Receiving
from headrace.engine.roster import Roster
from headrace.engine.sequence import Phase, Sequence, line_groups, make_sequences
from headrace.engine.stepper import AnyStepper
from headrace.engine.submit_check import check_submit
from headrace.kvcache.block_table import BlockTable, blocks_for, blocks_to_open
from headrace.kvcache.pool import BlockPool
from headrace.kvcache.prefix import PrefixHit
from headrace.scheduler.admission import Limits, Room, Waiting, admit, check_fits
from headrace.scheduler.plan import PromptWork, Running, plan_step
from headrace.text.output import OutputTextStream
from headrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class DecodeCounters:
    """Monotonic counts of one rank, exported as Prometheus counters.

    Attributes:
        steps: Steps that computed at least one row here.
        local_prefills: Prompts computed on a decode rank for want of a prefiller.
        preemptions: Sequences whose blocks were taken.
        retries: Sequences whose KV was asked for again after a prefiller failed them.
        ended: Sequences that ended, for whatever reason.
    """

    steps: int = 0
    local_prefills: int = 0
    preemptions: int = 0
    retries: int = 0
    ended: int = 0


class DecodeRank:
    """The state of one decode or mono rank between steps. One thread; never waits.

    Args:
        config: The engine's knobs.
        pool: This rank's blocks.
        stepper: Runs rows and samples.
        receiving: Transfer sessions; None in ``mono``.
        emitter: Outputs to the edges.
        tokenizer: For text and stop strings.
        clock: Time.
        limits: What one request may never exceed.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        pool: BlockPool,
        stepper: AnyStepper,
        receiving: Receiving | None,
        emitter: Emitter,
        tokenizer: Tokenizer,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self.roster = Roster()
        self.counters = DecodeCounters()
        self._config = config
        self._pool = pool
        self._stepper = stepper
        self._receiving = receiving
        self._emitter = emitter
        self._tokenizer = tokenizer
        self._clock = clock
        self._limits = limits

    # -- what arrives --------------------------------------------------------------------

    def submit(self, submit: Submit) -> None:
        """Take a request into the line, or end it at once with one clear line.

        A repeat of one that is in the line changes nothing.
        """
        if self.roster.of_request(submit.request_id):
            return
        try:
            check_submit(submit, vocab_size=self._stepper.vocab_size)
        except RequestError as error:
            self._emitter.refuse(submit, str(error))
            return
        sequences = make_sequences(
            submit,
            first_order=self.roster.take_orders(submit.num_choices),
            now_s=self._clock.now_s(),
            vocab_size=self._stepper.vocab_size,
            open_text=lambda: OutputTextStream(
                self._tokenizer,
                prompt_ids=submit.prompt_ids,
                stop=submit.params.stop,
                include_stop=submit.params.include_stop,
            ),
        )
        try:
            check_fits(
                len(submit.prompt_ids),
                max_tokens=submit.params.max_tokens,
                num_choices=len(sequences),
                limits=self._limits,
            )
        except RequestError as error:
            for sequence in sequences:
                self._emitter.fail(sequence, str(error))
            return
        for group in line_groups(sequences):
            self.roster.add(group)

    def abort(self, message: Abort) -> None:
        """Forget a request; blocks come back now, or when their writer is quiet."""
        for sequence in self.roster.of_request(message.request_id):
            self._end(sequence)

    # -- between steps -------------------------------------------------------------------

    def advance(self) -> None:
        """Take what sessions brought, and let in whoever fits. Called before every step."""
        if self._receiving is not None:
            for sequence in self._receiving.take_complete():
                self._on_received(sequence)
            for failure in self._receiving.take_failed():
                self._try_again(failure)
            self._receiving.release_quiet(self._pool)
        self._take_prefilled()
        while (first := self.roster.first_in_line()) is not None:
            if not self._try_start(first):
                break
        self._emitter.flush()

    @property
    def wants_step(self) -> bool:
        """Whether a step would compute anything here."""
        # Blocks that leave the lane may be what a request in the line waits for.
        return bool(
            self.roster.num_in_phase(Phase.RUNNING)
            or self.roster.num_in_phase(Phase.COMPUTING)
            or self._stepper.lane.is_leaving
        )

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return len(self.roster) > 0

    @property
    def num_waiting(self) -> int:
        """Requests without blocks."""
        return self.roster.num_in_phase(Phase.WAITING)

    def step(self) -> bool:
        """Plan and run one step; with nothing to do it only takes part in collectives.

        Returns:
            Whether anything was computed here. False with work pending means that blocks are
            short until a transfer ends, or that prompt chunks are on their way.
        """
        lane = self._stepper.lane
        plan = plan_step(
            [self._running(each) for each in self.roster.in_phase(Phase.RUNNING)],
            [
                self._prompt_work(each)
                for each in self.roster.in_phase(Phase.COMPUTING)
                if each.num_missing_tokens
            ],
            max_prompt_tokens=min(self._config.max_step_tokens, lane.room),
            free_blocks=self._pool.num_free,
            block_size=self._pool.block_size,
        )
        for sequence_id in plan.preempted:
            self._preempt(self.roster[sequence_id])
        started_s = self._clock.now_s()
        work = [(self.roster[chunk.sequence_id], chunk) for chunk in plan.chunks]
        for sequence, chunk in work:
            if not chunk.is_decode and not lane.holds(sequence.blocks):
                sequence.chunk_s = started_s
        for sequence in self._stepper.run(work, self._emitter):
            self._end(sequence)
        self._take_prefilled()
        self.counters.steps += bool(work)
        self._emitter.flush()
        return bool(work)

    def _take_prefilled(self) -> None:
        """Let sequences decode whose prompts have been computed here."""
        is_idle = not self.roster.num_in_phase(Phase.RUNNING)
        now_s = self._clock.now_s()
        for sequence in self._stepper.lane.settle(hands_over=is_idle):
            sequence.ledger.prefill_s += now_s - sequence.chunk_s
            if sequence.num_missing_tokens == 0:
                self._start_decoding(sequence)

    # -- admission -----------------------------------------------------------------------

    def _try_start(self, sequence: Sequence) -> bool:
        hit = self._pool.match(sequence.token_ids)
        num_tokens = len(sequence.token_ids)
        is_remote = self._is_remote(sequence, hit)
        waiting = Waiting(
            waiting_id=sequence.sequence_id,
            num_blocks=blocks_to_open(self._pool, hit, num_tokens),
            num_pinned_blocks=blocks_for(num_tokens, self._pool.block_size)
            - hit.num_tokens // self._pool.block_size
            if is_remote
            else 0,
            num_sequences=1 + self.roster.num_sisters(sequence),
            is_resumed=sequence.is_resumed,
        )
        if not admit([waiting], self._room()):
            return False
        table = BlockTable.open(self._pool, hit, num_tokens)
        if table is None:
            return False
        sequence.table = table
        sequence.admitted_s = self._clock.now_s()
        if not sequence.is_resumed:
            sequence.ledger.queue_s = sequence.admitted_s - sequence.arrived_s
            sequence.ledger.cached_tokens = table.num_tokens
        self._bring_kv(sequence)
        return True

    def _room(self) -> Room:
        return Room(
            free_blocks=self._pool.num_free,
            num_pinned=self._pool.num_pinned,
            max_pinned=self._pool.max_pinned,
            num_sequences=self.roster.num_holding(),
            max_sequences=self._config.max_sequences,
        )

    def _is_remote(self, sequence: Sequence, hit: PrefixHit) -> bool:
        return hit.num_tokens < len(sequence.token_ids) - 1 and self._can_ask(sequence)

    def _can_ask(self, sequence: Sequence) -> bool:
        """Whether a prefiller is there that may hold the sequence."""
        if self._receiving is None or sequence.is_outgrown:
            return False
        return self._receiving.can_reach(sequence)

    def _bring_kv(self, sequence: Sequence) -> None:
        """Start whatever gives the sequence the KV it lacks.

        What it lacks is asked of its table, not of the hit: a table opened in a full pool may
        have done without a block that the hit had.
        """
        if sequence.num_missing_tokens == 0:
            self._start_decoding(sequence)
        elif self._receiving is not None and self._can_ask(sequence):
            self._pool.pin(sequence.blocks.own_block_ids)
            self._receiving.open(sequence)
            self.roster.move(sequence, Phase.RECEIVING)
        else:
            # Counted, never silent: a decode rank that computes prompts is a fallback.
            self.counters.local_prefills += self._receiving is not None
            self.roster.move(sequence, Phase.COMPUTING)

    def _on_received(self, sequence: Sequence) -> None:
        num_tokens = sequence.num_missing_tokens
        if sequence.is_resumed:
            sequence.ledger.recomputed_tokens += num_tokens
        else:
            sequence.ledger.transferred_tokens += num_tokens
        self._pool.unpin(sequence.blocks.own_block_ids)
        sequence.blocks.advance(num_tokens)
        sequence.blocks.publish(sequence.token_ids)
        self._start_decoding(sequence)

    def _start_decoding(self, sequence: Sequence) -> None:
        """All KV but the last token's is there; the other choices share it from here on."""
        self._run(sequence)
        for sister in self.roster.take_sisters(sequence):
            sister.table = sequence.blocks.fork()
            if sister.table is None:
                sister.is_resumed = True
                self.roster.move(sister, Phase.WAITING)
                continue
            sister.ledger.queue_s = self._clock.now_s() - sister.arrived_s
            sister.ledger.cached_tokens = sister.blocks.num_tokens
            self._run(sister)

    def _run(self, sequence: Sequence) -> None:
        sequence.running_s = self._clock.now_s()
        sequence.owes_ledger = True
        self.roster.move(sequence, Phase.RUNNING)

    # -- planning views ------------------------------------------------------------------

    def _running(self, sequence: Sequence) -> Running:
        return Running(
            sequence_id=sequence.sequence_id,
            order=sequence.order,
            num_tokens=sequence.blocks.num_tokens,
            num_blocks=len(sequence.blocks.block_ids),
            num_reclaimable_blocks=self._num_reclaimable(sequence),
        )

    def _prompt_work(self, sequence: Sequence) -> PromptWork:
        return PromptWork(
            sequence_id=sequence.sequence_id,
            order=sequence.order,
            num_computed_tokens=sequence.blocks.num_tokens,
            num_remaining_tokens=sequence.num_missing_tokens,
            num_blocks=len(sequence.blocks.block_ids),
            num_reclaimable_blocks=self._num_reclaimable(sequence),
        )

    def _num_reclaimable(self, sequence: Sequence) -> int:
        is_held = self._stepper.lane.holds(sequence.blocks)
        return 0 if is_held else sequence.blocks.num_reclaimable_blocks

    # -- endings -------------------------------------------------------------------------

    def _preempt(self, sequence: Sequence) -> None:
        self._account_decode(sequence)
        self._stepper.lane.let_go(sequence.blocks)
        sequence.table = None
        sequence.is_resumed = True
        sequence.ledger.num_preemptions += 1
        self.counters.preemptions += 1
        self.roster.move(sequence, Phase.WAITING)

    def _try_again(self, failure: Failure) -> None:
        """Put a sequence whose KV will not come back into the line, if that may help."""
        sequence = failure.sequence
        if failure.is_final and sequence.is_resumed and not sequence.is_outgrown:
            # Its prompt was let in: what it has grown to since is no fault of the request.
            log.warning("%s is computed here: %s", sequence.sequence_id, failure.reason)
            self._give_blocks_back(sequence)
            sequence.is_outgrown = True
            self.roster.move(sequence, Phase.WAITING)
            return
        # What failed that often, in one place or several, will fail again.
        num_retries = sequence.ledger.num_retries
        if failure.is_final or num_retries >= sequence.submit.max_retries:
            tried = f" (tried {num_retries + 1} times)" if not failure.is_final else ""
            self._fail(sequence, f"{failure.reason}{tried}")
            return
        log.warning("%s is tried again: %s", sequence.sequence_id, failure.reason)
        self._give_blocks_back(sequence)
        sequence.failed_replicas.add(failure.replica)
        sequence.ledger.num_retries += 1
        self.counters.retries += 1
        self.roster.move(sequence, Phase.WAITING)

    def _fail(self, sequence: Sequence, error: str) -> None:
        for sister in (sequence, *self.roster.take_sisters(sequence)):
            self._emitter.fail(sister, error)
            self._end(sister)

    def _end(self, sequence: Sequence) -> None:
        """Give the blocks back and forget the sequence."""
        self._account_decode(sequence)
        self._give_blocks_back(sequence)
        self.counters.ended += 1
        self.roster.move(sequence, Phase.FINISHED)

    def _give_blocks_back(self, sequence: Sequence) -> None:
        """To the pool, or to whoever knows when their last writer is quiet."""
        if sequence.phase is Phase.RECEIVING and self._receiving is not None:
            self._receiving.give_up(sequence)
        elif sequence.table is not None:
            self._stepper.lane.let_go(sequence.blocks)
        sequence.table = None

    def _account_decode(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.RUNNING:
            sequence.ledger.decode_s += self._clock.now_s() - sequence.running_s
