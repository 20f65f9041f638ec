"""Placing (row, expert) pairs by expert, each expert's rows padded for canonical products.

Shape letters:
    R = token rows   K = experts per token   E = experts held   P = pairs whose expert is held
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.linear import ROW_MULTIPLE

# Rows of each expert to rows that a product of them is given, int64 [E] to [E].
RowRule = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs in ascending (row, expert) order.

    Attributes:
        num_padded: Rows of the padded arrangement.
        slots_P: int64 index of each pair in the flattened ``[R, K]`` ids.
        rows_P: int64 token row of each pair.
        experts_P: int64 expert of each pair, counted from the first held.
        places_P: int64 row of each pair in the padded arrangement, where expert after expert has
            its rows followed by its padding; an expert without pairs has no rows.
        ends_E: int32 end of each expert's rows in the padded arrangement.
    """

    num_padded: int
    slots_P: Tensor
    rows_P: Tensor
    experts_P: Tensor
    places_P: Tensor
    ends_E: Tensor


def local_id_table(experts: range, num_experts: int) -> Tensor:
    """Return int64 ``[num_experts + 1]``: each expert's place among those held, or their number.

    The last entry answers for the id -1 of an absent pair.
    """
    table = torch.full((num_experts + 1,), len(experts))
    table[experts.start : experts.stop] = torch.arange(len(experts))
    return table


def pad_to_multiple(counts_E: Tensor) -> Tensor:
    """Round each expert's rows up to a multiple of ``ROW_MULTIPLE``."""
    return (counts_E + (ROW_MULTIPLE - 1)) // ROW_MULTIPLE * ROW_MULTIPLE


def group_pairs(ids_RK: Tensor, *, num_experts: int, row_rule: RowRule = pad_to_multiple) -> Pairs:
    """Group the pairs whose expert is held.

    Args:
        ids_RK: int64 places of the experts among those held, from ``local_id_table``; E is
            passed over. Not modified.
        num_experts: E.
        row_rule: How many rows a product is given for those an expert has.

    Cost:
        Two sorts of R*K keys and two host syncs.
    """
    top_k = ids_RK.shape[1]
    ids_RK, order_RK = ids_RK.sort(dim=1)
    keys = ids_RK.flatten()
    held_P = (keys < num_experts).nonzero().squeeze(1)
    rows_P, experts_P = held_P // top_k, keys[held_P]
    counts_E = torch.bincount(experts_P, minlength=num_experts)
    padded_E = row_rule(counts_E)
    ends_E = padded_E.cumsum(0)
    by_expert_P, pair_P = experts_P.sort(stable=True)
    # A pair moves right by all the padding of the experts before its own.
    shift_E = (ends_E - padded_E) - (counts_E.cumsum(0) - counts_E)
    places_P = torch.arange(len(held_P), device=keys.device) + shift_E[by_expert_P]
    return Pairs(
        num_padded=int(ends_E[-1]),
        slots_P=rows_P * top_k + order_RK.flatten()[held_P],
        rows_P=rows_P,
        experts_P=experts_P,
        places_P=torch.empty_like(places_P).scatter_(0, pair_P, places_P),
        ends_E=ends_E.to(torch.int32),
    )
