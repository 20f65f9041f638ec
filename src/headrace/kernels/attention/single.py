"""Attention of sequences with one query token each, in one softmax: a decode step, not exact.

Sequences of about equal length make a **group**, whose keys and values are gathered together.

Shape letters:
    T = query rows of the batch   H = query heads   G = KV heads   R = H / G   D = head dimension
    N = blocks of the pool        S = token slots of a block   B = sequences of a group
    L = token slots that a group gathers for each of its sequences
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

# Elements of the keys and values of a group: 2 MiB in fp32 stay in cache between the products.
MAX_GROUP_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A sequence with one query token.

    Attributes:
        row: Its row in the batch.
        num_tokens: Tokens to attend to, its own included.
        block_ids: The sequence's blocks in order.
    """

    row: int
    num_tokens: int
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sequences that are gathered together.

    Attributes:
        rows_B: int64 rows in the batch; None when they are all of its rows in order.
        block_ids: int64 ``[B * L / S]``, sequence after sequence.
        num_sequences: B.
        num_tokens: L, or the sequences' own length where they are equally long.
        hidden_B1L: True where no token is; None when all are equally long.
        unwritten: int64 rows of ``[B * L]`` where no token is.
    """

    rows_B: Tensor | None
    block_ids: Tensor
    num_sequences: int
    num_tokens: int
    hidden_B1L: Tensor | None
    unwritten: Tensor


def plan_groups(
    queries: Sequence[Query], *, block_size: int, elements_per_token: int, num_rows: int
) -> tuple[Group, ...]:
    """Group sequences by the number of their blocks, as far as the cache goes.

    Args:
        queries: In any order. Not modified.
        block_size: S.
        elements_per_token: Of keys and values, over all heads held.
        num_rows: T of the whole batch.
    """
    ordered = sorted(queries, key=lambda query: (query.num_tokens, query.row))
    groups = groupby(ordered, key=lambda query: -(-query.num_tokens // block_size))
    return tuple(
        _group(part, num_blocks, block_size=block_size, num_rows=num_rows)
        for num_blocks, members in groups
        for part in _parts(
            list(members), MAX_GROUP_ELEMENTS // (num_blocks * block_size * elements_per_token)
        )
    )


def attend_group(q_THD: Tensor, pool_2GNSD: Tensor, group: Group) -> Tensor:
    """Attend for a group's rows; see ``paged_attention``.

    Args:
        q_THD: Queries, already scaled. Not modified.
        pool_2GNSD: The layer's KV pool. Read only.
        group: From ``plan_groups``.

    Returns:
        ``[B, H, D]`` in q's dtype.
    """
    num_kv_heads, head_dim = pool_2GNSD.shape[1], pool_2GNSD.shape[4]
    q_BHD = q_THD if group.rows_B is None else q_THD.index_select(0, group.rows_B)
    shape = (group.num_sequences, num_kv_heads, -1, head_dim)
    q_XRD = q_BHD.float().view(shape).transpose(0, 1).flatten(0, 1)
    kv_2XLD = _gather(pool_2GNSD, group)
    k_XLD, v_XLD = kv_2XLD[:, :, : group.num_tokens]
    scores_XRL = torch.bmm(q_XRD, k_XLD.transpose(1, 2))
    if group.hidden_B1L is not None:
        scores_GBRL = scores_XRL.unflatten(0, (num_kv_heads, -1))
        scores_GBRL.masked_fill_(group.hidden_B1L, -torch.inf)
    out_XRD = torch.bmm(torch.softmax(scores_XRL, -1), v_XLD)
    out_GBRD = out_XRD.view(num_kv_heads, group.num_sequences, -1, head_dim)
    return out_GBRD.transpose(0, 1).reshape(q_BHD.shape).to(q_THD.dtype)


def _gather(pool_2GNSD: Tensor, group: Group) -> Tensor:
    """Return fp32 ``[2, G*B, slots, D]``, values zero where no token is."""
    num_heads, head_dim = pool_2GNSD.shape[1], pool_2GNSD.shape[4]
    kv = pool_2GNSD.index_select(2, group.block_ids).float()
    if group.hidden_B1L is not None:
        # 0 * NaN is NaN: whatever lies in unwritten slots must not meet the zero probabilities.
        kv[1].view(num_heads, -1, head_dim).index_fill_(1, group.unwritten, 0.0)
    return kv.view(2, num_heads * group.num_sequences, -1, head_dim)


def _parts(members: list[Query], size: int) -> Iterator[list[Query]]:
    size = max(1, size)
    for first in range(0, len(members), size):
        yield members[first : first + size]


def _group(members: list[Query], num_blocks: int, *, block_size: int, num_rows: int) -> Group:
    lengths = [member.num_tokens for member in members]
    rows = [member.row for member in members]
    ids = [block_id for member in members for block_id in member.block_ids[:num_blocks]]
    is_even = lengths[0] == lengths[-1]
    num_slots = num_blocks * block_size
    hidden_BL = torch.arange(num_slots) >= torch.tensor(lengths)[:, None]
    return Group(
        rows_B=None if rows == list(range(num_rows)) else torch.tensor(rows),
        block_ids=torch.tensor(ids),
        num_sequences=len(members),
        num_tokens=lengths[0] if is_even else num_slots,
        hidden_B1L=None if is_even else hidden_BL[:, None],
        unwritten=hidden_BL.flatten().nonzero().squeeze(1),
    )
