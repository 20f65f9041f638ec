"""Who may start: pure functions over what waits and what the pool has left.

Starting means taking blocks for the whole prompt, so that a transfer can land anywhere in it.
Preempted sequences come before new requests, and nobody is overtaken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request, or a preempted sequence, that holds no blocks yet.

    Attributes:
        waiting_id: Whatever the caller knows it by.
        num_blocks: Blocks its prompt takes out of the free ones (``kvcache.blocks_to_open``).
        num_pinned_blocks: Of its blocks, those that will wait for KV from a peer; 0 if none will.
        num_sequences: Choices that will continue the prompt.
        is_resumed: A preempted sequence on its way back.
    """

    waiting_id: str
    num_blocks: int
    num_pinned_blocks: int = 0
    num_sequences: int = 1
    is_resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a rank has left to give.

    Attributes:
        free_blocks: Blocks that the pool can hand out now.
        num_pinned: Blocks that wait for KV not yet arrived.
        max_pinned: Blocks that may do so.
        num_sequences: Sequences that hold blocks: running, computing their prompt, or waiting
            for its KV (a request counts with all its choices).
        max_sequences: Sequences that may do so.
    """

    free_blocks: int
    num_pinned: int
    max_pinned: int
    num_sequences: int
    max_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may never exceed on a rank.

    Attributes:
        max_model_tokens: Longest prompt + output [tokens].
        num_blocks: Blocks of the pool.
        block_size: Tokens of a block [tokens].
        max_sequences: Sequences that a rank decodes together.
    """

    max_model_tokens: int
    num_blocks: int
    block_size: int
    max_sequences: int


def admit(waiting: Sequence[Waiting], room: Room) -> tuple[str, ...]:
    """Choose who starts now: preempted sequences first, then requests in arrival order.

    One block of growth is kept free for every sequence that holds blocks, the newcomer's own
    included unless it would be alone: so a sequence is not preempted by the very next admission.

    Args:
        waiting: All that wait, oldest first. Not modified.
        room: What the rank has left.

    Returns:
        Ids in the order in which they start.

    Guarantees:
        * Their ``num_blocks`` sum to at most ``free_blocks``, their sequences to at most what
          ``max_sequences`` leaves.
        * Pinned blocks stay within ``max_pinned``, save for one request that waits alone.
        * Nobody is overtaken: the result is a prefix of the line.
        * Progress: on a rank with nothing held, the first in line starts if its blocks are free
          and its sequences allowed.

    Cost:
        O(length of the line).
    """
    line = sorted(waiting, key=lambda each: not each.is_resumed)
    started: list[str] = []
    for each in line:
        next_room = _room_after(each, room)
        if next_room is None:
            break
        started.append(each.waiting_id)
        room = next_room
    return tuple(started)


def _room_after(each: Waiting, room: Room) -> Room | None:
    """Return what is left when ``each`` has started, or None if it may not."""
    num_sequences = room.num_sequences + each.num_sequences
    growth = num_sequences if room.num_sequences else 0
    num_pinned = room.num_pinned + each.num_pinned_blocks
    may_pin = not each.num_pinned_blocks or not room.num_pinned or num_pinned <= room.max_pinned
    free_blocks = room.free_blocks - each.num_blocks
    if free_blocks < growth or num_sequences > room.max_sequences or not may_pin:
        return None
    return Room(
        free_blocks=free_blocks,
        num_pinned=num_pinned,
        max_pinned=room.max_pinned,
        num_sequences=num_sequences,
        max_sequences=room.max_sequences,
    )


def check_fits(
    num_prompt_tokens: int, *, max_tokens: int, num_choices: int, limits: Limits
) -> None:
    """Refuse a request that could never finish here, before it costs anything.

    What passes can always run to its end alone in the pool, however often it is preempted: the
    last output token needs no KV.

    Raises:
        RequestError: Names the field, what came and what is possible (status 400).
    """
    total = num_prompt_tokens + max_tokens
    if total > limits.max_model_tokens:
        raise RequestError(
            f"this model's context is {limits.max_model_tokens} tokens, but {total} were asked "
            f"for ({num_prompt_tokens} in the prompt, {max_tokens} in the output): "
            f"shorten the prompt or lower max_tokens",
            param="max_tokens" if num_prompt_tokens < limits.max_model_tokens else "prompt",
            code="context_length_exceeded",
        )
    capacity = limits.num_blocks * limits.block_size
    if total - 1 > capacity:
        raise RequestError(
            f"the KV cache holds {capacity} tokens, but prompt and output need {total - 1}: "
            f"lower max_tokens, or serve with a larger kv_cache_mib",
            param="max_tokens" if num_prompt_tokens <= capacity else "prompt",
            code="context_length_exceeded",
        )
    if num_choices > limits.max_sequences:
        raise RequestError(
            f"n={num_choices}: this server decodes at most {limits.max_sequences} sequences "
            f"together",
            param="n",
        )
