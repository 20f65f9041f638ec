"""Grouped expert MLP with packed weights: one product an expert, of the rows that chose it.

Exact sums have the leaves of the reference. Without exact mode a rank that holds its experts in
full adds each row's experts at once, and nothing is rounded between the products.

Shape letters:
    R = token rows   K = experts per token   E = experts held   H = hidden width
    I = expert width held   J = 2I   W = width parts held   C = I / W, columns of a part
    P = (row, expert) pairs whose expert is held   X = rows of the pairs' padded arrangement
    S = subtrees: 1 when the experts are held in full, else one an expert group
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels.linear import PackedWeight, num_padded_rows, pack
from headrace.kernels.moe.grouping import group_pairs
from headrace.kernels.moe.leaves import Placement, sum_pairs, sum_row
from headrace.kernels.swiglu import swiglu
from headrace.kernels.team import Team, team_of

# Rows that share one set of products: bounds the memory of a long prompt chunk.
MAX_SLAB_ROWS = 1024

# Fewer are done before a helper has woken up (measured: 100 us, where an expert takes 70 or more).
# Reading a weight takes about as long as multiplying six rows with it once it is there.
MIN_SHARED_EXPERTS = 8
WEIGHT_ROWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedExperts:
    """A rank's experts; a call is ``expert_partials`` of them.

    Attributes:
        gate_up_E: Gate rows, then up rows, of each expert.
        down_WE: Down projection of each width part and expert.
        placement: Where they stand in the sum.
        exact: Canonical products.
        has_leaves: The sum is canonical: in exact mode, and where ranks share an expert.
        team: Shares the experts of a call.
    """

    gate_up_E: tuple[PackedWeight, ...]
    down_WE: tuple[tuple[PackedWeight, ...], ...]
    placement: Placement
    exact: bool
    has_leaves: bool
    team: Team

    def __call__(self, x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor) -> Tensor:
        """Compute the rank's subtrees; see ``expert_partials``."""
        run = self._sum_leaves if self.has_leaves else self._sum_rows
        if x_RH.shape[0] <= MAX_SLAB_ROWS:
            return run(x_RH, ids_RK, weights_RK.float())
        slabs = (tensor.split(MAX_SLAB_ROWS) for tensor in (x_RH, ids_RK, weights_RK.float()))
        return torch.cat([run(*rows) for rows in zip(*slabs, strict=True)])

    def _sum_leaves(self, x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor) -> Tensor:
        if x_RH.shape[0] == 1 and self._has_all and int(ids_RK.min()) >= 0:
            return self._sum_leaves_of_row(x_RH, ids_RK, weights_RK)
        rule = _padded_counts if self.exact else torch.Tensor.clone
        ids_RK = self.placement.local_ids[ids_RK]
        pairs = group_pairs(ids_RK, num_experts=self.placement.num_experts, row_rule=rule)
        ends = [0, *pairs.ends_E.tolist()]
        counts = [end - start for start, end in zip(ends, ends[1:], strict=False)]
        x_XH = x_RH.new_zeros((pairs.num_padded, x_RH.shape[1]), dtype=torch.float32)
        x_XH[pairs.places_P] = x_RH.index_select(0, pairs.rows_P).float()
        out_WXH = self._apply_shared(x_XH, list(enumerate(counts)), x_RH.dtype)
        return sum_pairs(out_WXH.transpose(0, 1), pairs, weights_RK, self.placement)

    def _sum_leaves_of_row(self, x_1H: Tensor, ids_1K: Tensor, weights_1K: Tensor) -> Tensor:
        order_K = ids_1K[0].argsort()
        experts = ids_1K[0][order_K].tolist()
        num_rows = num_padded_rows(1) if self.exact else 1
        x_XH = x_1H.new_zeros((len(experts), num_rows, x_1H.shape[1]), dtype=torch.float32)
        x_XH[:, 0] = x_1H
        counts = [(expert, num_rows) for expert in experts]
        out_WXH = self._apply_shared(x_XH.flatten(0, 1), counts, x_1H.dtype)
        return sum_row(out_WXH[:, ::num_rows], experts, weights_1K[0][order_K], self.placement)

    @property
    def _has_all(self) -> bool:
        """Whether every expert of the model is here in full: then ids are places."""
        return self.placement.is_whole and self.placement.holds_all

    def _sum_rows(self, x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor) -> Tensor:
        """Return the whole sums ``[R, 1, H]``."""
        x_RH = x_RH.float()
        if x_RH.shape[0] == 1 and self._has_all:
            # All experts are here, and there is nothing to sort.
            (ids,) = ids_RK.tolist()
            rows_KH = x_RH.expand(len(ids), -1)
            out_KH = self._apply_shared(rows_KH, [(place, 1) for place in ids], x_RH.dtype)[0]
            return torch.mm(weights_RK, out_KH).unsqueeze(1)
        ids = self.placement.local_ids[ids_RK].flatten()
        counts = torch.bincount(ids, minlength=len(self.gate_up_E) + 1).tolist()
        slots_P = ids.argsort(stable=True)[: len(ids) - counts.pop()]
        rows_P = slots_P // ids_RK.shape[1]
        rows_PH = x_RH.index_select(0, rows_P)
        out_PH = self._apply_shared(rows_PH, list(enumerate(counts)), x_RH.dtype)[0]
        out_PH *= weights_RK.flatten()[slots_P, None]
        return torch.zeros_like(x_RH).index_add_(0, rows_P, out_PH).unsqueeze(1)

    def _apply_shared(
        self, x_XH: Tensor, counts: list[tuple[int, int]], dtype: torch.dtype
    ) -> Tensor:
        """Run experts, each on its rows: ``[W, X, H]``; ``counts`` are (place, rows) in order."""
        counts = [(place, count) for place, count in counts if count]
        out_WXH = x_XH.new_empty((len(self.down_WE), *x_XH.shape))
        if self.team.num_threads == 1 or len(counts) < MIN_SHARED_EXPERTS:
            self._apply(x_XH, counts, out_WXH, dtype=dtype)
            return out_WXH
        tasks, first = [], 0
        for share in _shares(counts, self.team.num_threads):
            stop = first + sum(count for _, count in share)
            rows, out = x_XH[first:stop], out_WXH[:, first:stop]
            tasks.append(partial(self._apply, rows, share, out, dtype=dtype))
            first = stop
        self.team.run(tasks)
        return out_WXH

    def _apply(
        self, x_XH: Tensor, counts: list[tuple[int, int]], out_WXH: Tensor, *, dtype: torch.dtype
    ) -> None:
        sizes = [count for _, count in counts]
        gate_up_XJ = x_XH.new_empty((x_XH.shape[0], self.gate_up_E[0].num_columns))
        for (place, _), x, out in zip(
            counts, x_XH.split(sizes), gate_up_XJ.split(sizes), strict=True
        ):
            self.gate_up_E[place].product_into(x, out)
        if self.exact:
            act_XI = swiglu(gate_up_XJ.to(dtype)).float()
        else:
            gate_XI, up_XI = gate_up_XJ.chunk(2, dim=1)
            act_XI = F.silu(gate_XI).mul_(up_XI)
        num_parts = len(self.down_WE)
        act_WXC = act_XI.unflatten(1, (num_parts, -1)).transpose(0, 1).contiguous()
        for act_XC, out_XH, down_E in zip(act_WXC, out_WXH, self.down_WE, strict=True):
            for (place, _), x, out in zip(
                counts, act_XC.split(sizes), out_XH.split(sizes), strict=True
            ):
                down_E[place].product_into(x, out)


def pack_experts_half(
    gate_up_EJH: Tensor, down_EHI: Tensor, placement: Placement, *, exact: bool
) -> PackedExperts:
    """Pack a rank's expert weights once, at load.

    Args:
        gate_up_EJH: ``[E, 2I, H]``, gate rows first, any float dtype. Not kept.
        down_EHI: ``[E, H, I]``, likewise.
        placement: Where they stand in the sum.
        exact: Canonical products and leaves.
    """
    has_leaves = exact or not placement.is_whole
    num_parts = placement.num_parts if has_leaves else 1
    parts_WEHC = down_EHI.unflatten(2, (num_parts, -1)).permute(2, 0, 1, 3)
    return PackedExperts(
        gate_up_E=tuple(pack(weight) for weight in gate_up_EJH),
        down_WE=tuple(tuple(pack(weight) for weight in part) for part in parts_WEHC),
        placement=placement,
        exact=exact,
        has_leaves=has_leaves,
        team=team_of(torch.get_num_threads()),
    )


def _padded_counts(counts_E: Tensor) -> Tensor:
    return torch.tensor([num_padded_rows(count) for count in counts_E.tolist()])


def _shares(counts: list[tuple[int, int]], num_shares: int) -> list[list[tuple[int, int]]]:
    """Cut experts into runs of about equal cost."""
    costs = [count + WEIGHT_ROWS for _, count in counts]
    middles = [end - cost / 2 for end, cost in zip(accumulate(costs), costs, strict=True)]
    total = sum(costs)
    cuts = [bisect_left(middles, total * share / num_shares) for share in range(1, num_shares)]
    bounds = zip([0, *cuts], [*cuts, len(counts)], strict=True)
    return [counts[start:stop] for start, stop in bounds if start < stop]
