"""A step's rows: copies first, blocks reserved, tokens where they belong."""

from __future__ import annotations

import torch

from headrace.core.messages import Outputs
from headrace.core.plans import Chunk
from headrace.core.requests import FinishReason
from headrace.engine.sequence import Phase
from tests.support.engine_world import World


def test_a_row_whose_logits_are_not_finite_ends_alone() -> None:
    world = World(tp=0)
    good, bad = world.submit([1] * 5), world.submit([2] * 5)
    run = world.backend.run

    def poison(rows, **options):  # noqa: ANN001, ANN003, ANN202
        logits = run(rows, **options)
        index = 0
        for row in rows:
            if row.wants_logits and row.token_ids[-1] == 2:
                logits[index] = torch.nan
            index += row.wants_logits
        return logits

    world.backend.run = poison  # type: ignore[method-assign]
    world.run(good, bad)
    assert "not finite" in world.last(bad).error
    assert world.last(good).finish_reason is FinishReason.LENGTH
    world.settle()
    world.check_idle()


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    world = World(tp=0)
    prompt = list(range(48))
    first = world.submit(prompt, max_tokens=1)
    world.run(first)
    copies = []
    copy = world.backend.copy_block
    world.backend.copy_block = lambda a, b: (copies.append((a, b)), copy(a, b))  # type: ignore[assignment]
    again = world.submit(prompt, max_tokens=4, ignore_eos=True)
    world.turn()
    ((source, target),) = copies
    sequence = world.rank.roster[f"{again}/0"]
    assert sequence.phase is Phase.RUNNING
    assert sequence.blocks.block_ids[2] == target != source
    assert not sequence.blocks.copies


def test_traces_carry_the_raw_logits_and_digests_of_the_kv_so_far() -> None:
    world = World(tp=0)
    request = world.submit([1] * 20, max_tokens=2, trace=True)
    world.run(request)
    traces = [out.trace for out in world.outputs[request]]
    assert all(trace is not None and len(trace.logits) == 261 * 4 for trace in traces)
    assert traces[0] is not None
    assert [len(layer) for layer in traces[0].kv_digests] == [2, 2]


def test_prompt_chunks_yield_no_token() -> None:
    world = World(tp=0)
    request = world.submit([1] * 20)
    world.rank.advance()
    sequence = world.rank.roster[f"{request}/0"]
    world.rank._stepper.run([(sequence, Chunk(sequence.sequence_id, 0, 10))], world.rank._emitter)
    assert sequence.num_output_tokens == 0
    assert sequence.blocks.num_tokens == 10
    assert not any(isinstance(message, Outputs) for _, message in world.sent)
