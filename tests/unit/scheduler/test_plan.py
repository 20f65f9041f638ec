"""The promises of the step planner, each checked on arbitrary sequences and pools."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.plans import Chunk, StepPlan
from headrace.scheduler.plan import PromptWork, Running, plan_prefill, plan_step

SIZE = 4


def prompt(name: str, *, computed: int = 0, remaining: int, blocks: int = 0) -> PromptWork:
    return PromptWork(
        sequence_id=name,
        order=0,
        num_computed_tokens=computed,
        num_remaining_tokens=remaining,
        num_blocks=blocks,
    )


def running(name: str, order: int, *, tokens: int = 1, blocks: int = 1) -> Running:
    return Running(
        sequence_id=name,
        order=order,
        num_tokens=tokens,
        num_blocks=blocks,
        num_reclaimable_blocks=blocks,
    )


def new_blocks(work: PromptWork | Running, num_tokens: int) -> int:
    start = work.num_tokens if isinstance(work, Running) else work.num_computed_tokens
    return max(0, -(-(start + num_tokens) // SIZE) - work.num_blocks)


@st.composite
def prompt_lines(draw: st.DrawFn) -> list[PromptWork]:
    line = []
    for order in range(draw(st.integers(0, 6))):
        computed = draw(st.integers(0, 9))
        blocks = -(-computed // SIZE) + draw(st.integers(0, 3))
        remaining = draw(st.integers(1, 20))
        line.append(
            PromptWork(
                sequence_id=f"p{order}",
                order=2 * order,
                num_computed_tokens=computed,
                num_remaining_tokens=remaining,
                num_blocks=blocks,
                num_reclaimable_blocks=draw(st.integers(0, blocks)),
            )
        )
    return line


@st.composite
def decoding(draw: st.DrawFn) -> list[Running]:
    """Running sequences; each has a block of its own, or needs one (see ``BlockTable``)."""
    rows = []
    for order in range(draw(st.integers(0, 6))):
        blocks = draw(st.integers(1, 5))
        tokens = draw(st.integers((blocks - 1) * SIZE + 1, blocks * SIZE))
        is_full = tokens == blocks * SIZE
        own = draw(st.integers(0 if is_full else 1, blocks))
        rows.append(
            Running(
                sequence_id=f"r{order}",
                order=2 * order + 1,
                num_tokens=tokens,
                num_blocks=blocks,
                num_reclaimable_blocks=own,
            )
        )
    return draw(st.permutations(rows))


budgets = st.integers(1, 40)
frees = st.integers(0, 12)


def test_a_long_prompt_is_split_and_never_overtaken():
    line = [prompt("long", remaining=100), prompt("short", remaining=1)]
    grants = plan_prefill(line, max_tokens=10, free_blocks=99, block_size=SIZE)
    assert grants == (Chunk("long", 0, 10),)


def test_what_one_prompt_leaves_goes_to_the_next():
    line = [prompt("a", computed=8, remaining=3, blocks=3), prompt("b", remaining=50)]
    grants = plan_prefill(line, max_tokens=10, free_blocks=99, block_size=SIZE)
    assert grants == (Chunk("a", 8, 3), Chunk("b", 0, 7))


def test_blocks_held_already_cost_nothing():
    line = [prompt("a", computed=2, remaining=10, blocks=3)]
    grants = plan_prefill(line, max_tokens=99, free_blocks=0, block_size=SIZE)
    assert grants == (Chunk("a", 2, 10),)


@given(line=prompt_lines(), max_tokens=budgets, free_blocks=frees)
def test_prompt_grants_stay_within_both_budgets(
    line: list[PromptWork], max_tokens: int, free_blocks: int
):
    grants = plan_prefill(line, max_tokens=max_tokens, free_blocks=free_blocks, block_size=SIZE)
    assert sum(grant.num_tokens for grant in grants) <= max_tokens
    pairs = list(zip(line, grants, strict=False))
    assert sum(new_blocks(work, grant.num_tokens) for work, grant in pairs) <= free_blocks


@given(line=prompt_lines(), max_tokens=budgets, free_blocks=frees)
def test_prompt_grants_are_a_prefix_of_the_line_and_only_the_last_is_partial(
    line: list[PromptWork], max_tokens: int, free_blocks: int
):
    grants = plan_prefill(line, max_tokens=max_tokens, free_blocks=free_blocks, block_size=SIZE)
    for work, grant in zip(line, grants, strict=False):
        assert (grant.sequence_id, grant.start) == (work.sequence_id, work.num_computed_tokens)
        assert 0 < grant.num_tokens <= work.num_remaining_tokens
        assert not grant.is_decode
    for work, grant in zip(line, grants[:-1], strict=False):
        assert grant.num_tokens == work.num_remaining_tokens


@given(line=prompt_lines(), max_tokens=budgets, free_blocks=frees)
def test_prompt_grants_never_stop_while_one_more_token_fits(
    line: list[PromptWork], max_tokens: int, free_blocks: int
):
    grants = plan_prefill(line, max_tokens=max_tokens, free_blocks=free_blocks, block_size=SIZE)
    granted = [grant.num_tokens for grant in grants] + [0] * (len(line) - len(grants))
    first = next((i for i, w in enumerate(line) if granted[i] < w.num_remaining_tokens), None)
    if first is None or sum(granted) == max_tokens:
        return
    granted[first] += 1
    wanted = sum(new_blocks(work, tokens) for work, tokens in zip(line, granted, strict=True))
    assert wanted > free_blocks


def test_decodes_come_first_and_do_not_use_up_the_prompts_budget():
    plan = plan_step(
        [running("new", 2), running("old", 1)],
        [prompt("p", remaining=50, blocks=20)],
        max_prompt_tokens=6,
        free_blocks=0,
        block_size=SIZE,
    )
    decodes = (Chunk("old", 1, 1, is_decode=True), Chunk("new", 1, 1, is_decode=True))
    assert plan == StepPlan(chunks=(*decodes, Chunk("p", 0, 6)))


def test_the_newest_gives_up_its_blocks_when_growth_does_not_fit():
    rows = [running(name, order, tokens=8, blocks=2) for order, name in enumerate("abc")]
    plan = plan_step(rows, [], max_prompt_tokens=8, free_blocks=1, block_size=SIZE)
    assert plan.preempted == ("c",)
    assert [chunk.sequence_id for chunk in plan.chunks] == ["a", "b"]


def test_a_preempted_sequences_own_growth_is_no_longer_wanted():
    rows = [running(name, order, tokens=8, blocks=2) for order, name in enumerate("ab")]
    shares_all = Running(
        sequence_id="c", order=2, num_tokens=8, num_blocks=2, num_reclaimable_blocks=0
    )
    plan = plan_step([*rows, shares_all], [], max_prompt_tokens=8, free_blocks=2, block_size=SIZE)
    assert plan.preempted == ("c",)


def test_a_newer_prompt_gives_way_to_an_older_running_sequence():
    work = PromptWork(
        sequence_id="p",
        order=5,
        num_computed_tokens=4,
        num_remaining_tokens=4,
        num_blocks=2,
        num_reclaimable_blocks=2,
    )
    rows = [running("a", 1, tokens=4)]
    plan = plan_step(rows, [work], max_prompt_tokens=8, free_blocks=0, block_size=SIZE)
    assert plan == StepPlan(chunks=(Chunk("a", 4, 1, is_decode=True),), preempted=("p",))


def test_the_last_one_waits_for_a_block_and_keeps_its_own():
    rows = [running("a", 1, tokens=4)]
    plan = plan_step(rows, [], max_prompt_tokens=8, free_blocks=0, block_size=SIZE)
    assert plan == StepPlan()


class Step(NamedTuple):
    """Arguments of one call of the planner."""

    rows: list[Running]
    prompts: list[PromptWork]
    max_tokens: int
    free: int

    def plan(self) -> StepPlan:
        return plan_step(
            self.rows,
            self.prompts,
            max_prompt_tokens=self.max_tokens,
            free_blocks=self.free,
            block_size=SIZE,
        )

    def taken_back(self, names: Sequence[str]) -> int:
        work = {each.sequence_id: each for each in (*self.rows, *self.prompts)}
        return sum(work[name].num_reclaimable_blocks for name in names)


steps = st.builds(Step, rows=decoding(), prompts=prompt_lines(), max_tokens=budgets, free=frees)


@given(step=steps)
def test_free_blocks_are_never_negative_after_preemption(step: Step):
    plan = step.plan()
    work = {each.sequence_id: each for each in (*step.rows, *step.prompts)}
    needed = sum(new_blocks(work[each.sequence_id], each.num_tokens) for each in plan.chunks)
    assert needed <= step.free + step.taken_back(plan.preempted)


@given(step=steps)
def test_every_running_sequence_is_decoded_or_preempted_save_a_lone_one(step: Step):
    plan = step.plan()
    decoded = {chunk.sequence_id for chunk in plan.chunks if chunk.is_decode}
    left = {row.sequence_id for row in step.rows} - decoded - set(plan.preempted)
    if left:
        assert len(left) == 1
        assert len(plan.preempted) == len(step.rows) + len(step.prompts) - 1
    assert not decoded & set(plan.preempted)


@given(step=steps)
def test_the_newest_are_preempted_first_and_the_oldest_never(step: Step):
    plan = step.plan()
    line = sorted((*step.rows, *step.prompts), key=lambda each: -each.order)
    names = tuple(each.sequence_id for each in line)
    assert plan.preempted == names[: len(plan.preempted)]
    assert len(plan.preempted) < max(1, len(names))


@given(step=steps)
def test_nobody_is_preempted_in_vain(step: Step):
    plan = step.plan()
    if not plan.preempted:
        return
    *before, spared = plan.preempted
    stay = [row for row in step.rows if row.sequence_id not in before]
    growth = sum(row.num_tokens == row.num_blocks * SIZE for row in stay)
    assert growth > step.free + step.taken_back(before), f"{spared} could have stayed"


@given(step=steps)
def test_something_is_scheduled_whenever_anything_can_be(step: Step):
    plan = step.plan()
    if any(row.num_tokens < row.num_blocks * SIZE for row in step.rows) or (
        step.rows and step.free
    ):
        assert plan.chunks
    if step.prompts and not step.rows and (step.free or new_blocks(step.prompts[0], 1) == 0):
        assert plan.chunks


@given(step=steps)
def test_prompt_tokens_stay_within_the_step(step: Step):
    plan = step.plan()
    assert sum(each.num_tokens for each in plan.chunks if not each.is_decode) <= step.max_tokens
    kinds = [chunk.is_decode for chunk in plan.chunks]
    assert kinds == sorted(kinds, reverse=True), "decode rows come first"


@given(step=steps)
def test_the_plan_does_not_depend_on_the_order_in_which_sequences_are_given(step: Step):
    turned = step._replace(rows=step.rows[::-1], prompts=step.prompts[::-1])
    assert turned.plan() == step.plan()
