"""Planner, admission and pool together: every request that may start at all also ends.

A rank without a model runs them in the engine's order on arbitrary requests, some computed here,
some whose KV a peer delivers steps later, in pools so small that preemption is the rule.
"""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import RequestError
from headrace.core.plans import StepPlan
from headrace.kvcache.block_table import BlockTable, blocks_to_open
from headrace.kvcache.pool import BlockPool
from headrace.scheduler.admission import Limits, Room, Waiting, admit, check_fits
from headrace.scheduler.plan import PromptWork, Running, plan_step

SIZE = 4
MAX_SEQUENCES = 4
MAX_PROMPT_TOKENS = 6


@dataclass
class Job:
    order: int
    token_ids: list[int]
    max_tokens: int
    transfer_steps: int  # 0: the prompt is computed here
    table: BlockTable | None = None
    num_steps_to_arrival: int = 0
    num_outputs: int = 0
    num_preemptions: int = 0

    @property
    def name(self) -> str:
        return str(self.order)


class Rank:
    def __init__(self, pool: BlockPool, jobs: list[Job]) -> None:
        self.pool = pool
        self.waiting = jobs
        self.held: list[Job] = []

    def step(self) -> StepPlan:
        self.start_waiting()
        self.receive()
        decoding = [each for each in self.held if self.is_decoding(each)]
        prompts = [
            each for each in self.held if not each.num_steps_to_arrival and each not in decoding
        ]
        plan = plan_step(
            [self.running(each) for each in decoding],
            [self.prompt_work(each) for each in prompts],
            max_prompt_tokens=MAX_PROMPT_TOKENS,
            free_blocks=self.pool.num_free,
            block_size=SIZE,
        )
        self.run(plan)
        self.pool.check_invariants()
        return plan

    def start_waiting(self) -> None:
        room = Room(
            free_blocks=self.pool.num_free,
            num_pinned=self.pool.num_pinned,
            max_pinned=self.pool.max_pinned,
            num_sequences=len(self.held),
            max_sequences=MAX_SEQUENCES,
        )
        by_name = {each.name: each for each in self.waiting}
        for name in admit([self.waits(each) for each in self.waiting], room):
            job = by_name[name]
            hit = self.pool.match(job.token_ids)
            job.table = BlockTable.open(self.pool, hit, len(job.token_ids))
            assert job.table is not None, "admitted without the blocks to start"
            job.table.finish_copies()
            if job.transfer_steps and self.num_missing(job):
                job.num_steps_to_arrival = job.transfer_steps
                self.pool.pin(job.table.own_block_ids)
            self.waiting.remove(job)
            self.held.append(job)

    def waits(self, job: Job) -> Waiting:
        hit = self.pool.match(job.token_ids)
        num_blocks = blocks_to_open(self.pool, hit, len(job.token_ids))
        return Waiting(
            waiting_id=job.name,
            num_blocks=num_blocks,
            num_pinned_blocks=num_blocks if job.transfer_steps else 0,
            is_resumed=job.num_preemptions > 0,
        )

    def receive(self) -> None:
        for job in self.held:
            if job.num_steps_to_arrival:
                job.num_steps_to_arrival -= 1
                if not job.num_steps_to_arrival:
                    self.pool.unpin(job.table.own_block_ids)
                    self.compute(job, self.num_missing(job))

    def run(self, plan: StepPlan) -> None:
        by_name = {each.name: each for each in self.held}
        for name in plan.preempted:
            job = by_name[name]
            job.table.release()
            job.num_preemptions += 1
            self.held.remove(job)
            self.waiting.append(job)
            self.waiting.sort(key=lambda each: each.order)
        for chunk in plan.chunks:
            job = by_name[chunk.sequence_id]
            assert job.table.num_tokens == chunk.start
            assert job.table.reserve(chunk.num_tokens), "planned without the blocks to run"
            self.compute(job, chunk.num_tokens)
            if chunk.is_decode:
                self.sample(job)

    def compute(self, job: Job, num_tokens: int) -> None:
        job.table.advance(num_tokens)
        job.table.publish(job.token_ids)

    def sample(self, job: Job) -> None:
        job.num_outputs += 1
        job.token_ids.append(job.num_outputs % 2)
        if job.num_outputs == job.max_tokens:
            job.table.release()
            self.held.remove(job)

    def num_missing(self, job: Job) -> int:
        return len(job.token_ids) - 1 - job.table.num_tokens

    def is_decoding(self, job: Job) -> bool:
        return not job.num_steps_to_arrival and not self.num_missing(job)

    def running(self, job: Job) -> Running:
        return Running(
            sequence_id=job.name,
            order=job.order,
            num_tokens=job.table.num_tokens,
            num_blocks=len(job.table.block_ids),
            num_reclaimable_blocks=job.table.num_reclaimable_blocks,
        )

    def prompt_work(self, job: Job) -> PromptWork:
        return PromptWork(
            sequence_id=job.name,
            order=job.order,
            num_computed_tokens=job.table.num_tokens,
            num_remaining_tokens=self.num_missing(job),
            num_blocks=len(job.table.block_ids),
            num_reclaimable_blocks=job.table.num_reclaimable_blocks,
        )


@st.composite
def workloads(draw: st.DrawFn) -> tuple[BlockPool, list[Job]]:
    pool = BlockPool(draw(st.integers(1, 9)), SIZE, prefix_cache=draw(st.booleans()))
    limits = Limits(
        max_model_tokens=40, num_blocks=pool.num_blocks, block_size=SIZE, max_sequences=8
    )
    jobs: list[Job] = []
    for _ in range(draw(st.integers(1, 6))):
        token_ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=20))
        max_tokens, steps = draw(st.integers(1, 20)), draw(st.sampled_from([0, 0, 1, 7]))
        try:
            check_fits(len(token_ids), max_tokens=max_tokens, num_choices=1, limits=limits)
        except RequestError:
            continue
        jobs.append(Job(len(jobs), token_ids, max_tokens, steps))
    return pool, jobs


@given(workload=workloads())
def test_every_admissible_request_ends_however_small_the_pool(workload):
    pool, jobs = workload
    rank = Rank(pool, jobs[:])
    for _ in range(2000):
        if not rank.waiting and not rank.held:
            break
        plan = rank.step()
        assert plan.chunks or pool.num_pinned, "a step with work did none, and no KV is on its way"
    assert [job.num_outputs for job in jobs] == [job.max_tokens for job in jobs]
    assert pool.is_idle


@given(workload=workloads())
def test_the_oldest_request_on_a_rank_is_never_preempted(workload):
    pool, jobs = workload
    rank = Rank(pool, jobs[:])
    while rank.waiting or rank.held:
        rank.step()
    assert not jobs or jobs[0].num_preemptions == 0
