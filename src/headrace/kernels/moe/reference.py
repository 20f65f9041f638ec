"""Plain-torch grouped expert MLP.

Two ways, bit-equal: up to 16 rows, every expert that any row chose computes all rows (a product
has 16 rows anyway) and weights of zero take out what was not chosen; beyond, pairs are sorted by
expert. Expert weights keep their released orientation, so that loading copies as little as it can.

Shape letters:
    R = token rows   K = experts per token   E = experts held   H = hidden width
    I = expert width held   J = 2I   W = width parts held   C = I / W, columns of a part
    A = experts with pairs   O = 16 rows   P = (row, expert) pairs whose expert is held
    X = rows of a grouped product, each expert's a multiple of 16
    G = expert groups held   S = subtrees: 1 when the experts are held in full, else G
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels.linear import ROW_MULTIPLE
from headrace.kernels.moe.grouping import group_pairs, local_id_table
from headrace.kernels.swiglu import swiglu
from headrace.kernels.tree import tree_sum

# Up to this many bytes of active experts are copied for one batched product; above, the copy costs
# more than a grouped product's walk over all experts.
MAX_GATHER_BYTES = 4 << 20

# Rows that share one set of grouped products, and elements of the leaves added up at a time: both
# bound the memory of a long prompt chunk; a MiB of leaves stays in cache.
MAX_SLAB_ROWS = 1024
MAX_LEAF_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """A rank's experts, packed for this kernel by ``pack_experts``.

    Attributes:
        gate_up_E1JH: Gate rows, then up rows, as one part.
        down_EWHC: Down projection by width part.
        local_ids: int64; entry i is expert i's place among the experts held, or E.
        group_E: int64 expert group, counted from the first held, of each expert held.
        num_groups: G.
        is_whole: The experts' whole width is held.
    """

    gate_up_E1JH: Tensor
    down_EWHC: Tensor
    local_ids: Tensor
    group_E: Tensor
    num_groups: int
    is_whole: bool


def pack_experts(
    gate_up_EJH: Tensor,
    down_EHI: Tensor,
    *,
    experts: range,
    num_experts: int,
    num_groups: int,
    num_parts: int,
    is_whole: bool,
) -> ExpertWeights:
    """Arrange a rank's expert weights once, at load.

    Args:
        gate_up_EJH: ``[E, 2I, H]``, gate rows first, in the dtype to multiply in (fp32 for
            canonical products). Kept by reference.
        down_EHI: ``[E, H, I]``, likewise; copied.
        experts: Model-wide ids of the experts held.
        num_experts: Experts of the model.
        num_groups: Expert groups held; divides E.
        num_parts: Width parts held; divides I.
        is_whole: These are all the width parts of the model.
    """
    return ExpertWeights(
        gate_up_E1JH=gate_up_EJH.unsqueeze(1),
        down_EWHC=down_EHI.unflatten(2, (num_parts, -1)).transpose(1, 2).contiguous(),
        local_ids=local_id_table(experts, num_experts),
        group_E=torch.arange(len(experts)) * num_groups // len(experts),
        num_groups=num_groups,
        is_whole=is_whole,
    )


def expert_partials(
    x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor, experts: ExpertWeights
) -> Tensor:
    """Compute this rank's subtrees of every row's weighted sum over its experts.

    Leaf (g, w) of a row is the sum, in ascending expert id, over the row's experts in group g of
    ``weight * (act[part w] @ down[part w])``, with ``act = silu(gate) * up``; leaves are added by
    ``tree_sum``, group-major.

    Args:
        x_RH: Rows in the model dtype; R may be 0. Not modified.
        ids_RK: int64 model-wide expert ids, different within a row; experts not held are passed
            over, and so is -1. Not modified.
        weights_RK: Gate weights, any float dtype. Not modified.
        experts: The rank's experts.

    Returns:
        fp32 ``[R, S, H]`` in leaf order; rows without an expert here are +0.

    Numerics:
        Gate, up, silu and act are rounded to x's dtype where the reference library holds them so;
        down products, weighting and sums stay in fp32. A row does not depend on the other rows.

    Cost:
        6*X*H*I FLOPs. Holds ``4*X*W*H`` bytes of outputs for at most ``MAX_SLAB_ROWS`` rows. A
        host sync for the rows per expert.
    """
    local_ids_RK, weights_RK = experts.local_ids[ids_RK], weights_RK.float()
    if x_RH.shape[0] <= ROW_MULTIPLE:
        return _few_rows(x_RH, local_ids_RK, weights_RK, experts)
    slab = MAX_SLAB_ROWS
    slabs = zip(x_RH.split(slab), local_ids_RK.split(slab), weights_RK.split(slab), strict=True)
    return torch.cat([_many_rows(*rows, experts) for rows in slabs])


def _few_rows(x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor, experts: ExpertWeights) -> Tensor:
    """Return the subtrees of at most 16 rows; every active expert computes all of them."""
    num_rows, hidden = x_RH.shape
    num_experts, num_parts = experts.down_EWHC.shape[:2]
    # The column past the last collects what is held elsewhere.
    weights_RE = weights_RK.new_zeros((num_rows, num_experts + 1)).scatter_(1, ids_RK, weights_RK)
    counts_E = torch.bincount(ids_RK.flatten(), minlength=num_experts + 1)[:num_experts]
    active_A = counts_E.nonzero().squeeze(1)
    leaves_GWRH = weights_RK.new_zeros((experts.num_groups, num_parts, num_rows, hidden))
    num_active = active_A.shape[0]
    if num_active:
        x_OH = x_RH.new_zeros((ROW_MULTIPLE, hidden), dtype=experts.down_EWHC.dtype)
        x_OH[:num_rows] = x_RH
        x_A1OH = x_OH.expand(num_active, 1, -1, -1)
        gate_up_A1OJ = _few_product(x_A1OH, experts.gate_up_E1JH, active_A).to(x_RH.dtype)
        act_AOI = swiglu(gate_up_A1OJ.squeeze(1)).to(x_OH.dtype)
        act_AWOC = act_AOI.view(num_active, ROW_MULTIPLE, num_parts, -1).transpose(1, 2)
        out_AWOH = _few_product(act_AWOC, experts.down_EWHC, active_A)
        weights_A1R1 = weights_RE.t().index_select(0, active_A)[:, None, :, None]
        # Active experts ascend, and so does what meets in one leaf.
        out_AWRH = out_AWOH[:, :, :num_rows].float() * weights_A1R1
        leaves_GWRH.flatten(1).index_add_(0, experts.group_E[active_A], out_AWRH.flatten(1))
    return _subtrees(leaves_GWRH, experts)


def _few_product(x_AWOC: Tensor, weight_EWHC: Tensor, active_A: Tensor) -> Tensor:
    """Multiply 16 rows of each active expert, part by part: ``[A, W, 16, H]``."""
    num_active, num_parts = x_AWOC.shape[:2]
    if num_active < weight_EWHC.shape[0]:
        if num_active * weight_EWHC[0].nbytes > MAX_GATHER_BYTES:
            counts_E = torch.zeros(weight_EWHC.shape[0], dtype=torch.int32)
            ends_E = counts_E.index_fill_(0, active_A, ROW_MULTIPLE).cumsum(0, dtype=torch.int32)
            x_XWC = x_AWOC.transpose(1, 2).flatten(0, 1)
            out_XWH = _grouped_product(x_XWC, weight_EWHC, ends_E)
            return out_XWH.unflatten(0, (num_active, ROW_MULTIPLE)).transpose(1, 2)
        weight_EWHC = weight_EWHC.index_select(0, active_A)
    out = torch.bmm(x_AWOC.flatten(0, 1), weight_EWHC.flatten(0, 1).transpose(1, 2))
    return out.view(num_active, num_parts, ROW_MULTIPLE, -1)


def _many_rows(x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor, experts: ExpertWeights) -> Tensor:
    """Return the subtrees of any number of rows, pairs sorted by expert for the products."""
    num_rows, hidden = x_RH.shape
    num_experts, num_parts = experts.down_EWHC.shape[:2]
    pairs = group_pairs(ids_RK, num_experts=num_experts)
    x_XH = x_RH.new_zeros((pairs.num_padded, hidden), dtype=experts.down_EWHC.dtype)
    x_XH[pairs.places_P] = x_RH[pairs.rows_P].to(x_XH.dtype)
    gate_up_X1J = _grouped_product(x_XH.unsqueeze(1), experts.gate_up_E1JH, pairs.ends_E)
    act_XI = swiglu(gate_up_X1J.squeeze(1).to(x_RH.dtype)).to(x_XH.dtype)
    act_XWC = act_XI.unflatten(1, (num_parts, -1))
    out_XWH = _grouped_product(act_XWC, experts.down_EWHC, pairs.ends_E)
    weights_P = weights_RK.flatten()[pairs.slots_P]
    group_P = experts.group_E[pairs.experts_P]
    # Leaves of a few rows at a time stay in cache; pairs are in row order.
    slab = max(1, MAX_LEAF_ELEMENTS // (experts.num_groups * num_parts * hidden))
    starts = range(0, num_rows, slab)
    bounds = torch.searchsorted(pairs.rows_P, torch.tensor([*starts, num_rows])).tolist()
    sums = []
    for start, first, last in zip(starts, bounds, bounds[1:], strict=False):
        leaves = weights_RK.new_zeros(
            (min(slab, num_rows - start), experts.num_groups, num_parts, hidden)
        )
        out_PWH = out_XWH[pairs.places_P[first:last]].float()
        out_PWH *= weights_P[first:last, None, None]
        leaf_P = (pairs.rows_P[first:last] - start) * experts.num_groups + group_P[first:last]
        # A row's pairs ascend by expert, and so does what meets in one leaf.
        leaves.view(-1, num_parts * hidden).index_add_(0, leaf_P, out_PWH.flatten(1))
        sums.append(_subtrees(leaves.permute(1, 2, 0, 3), experts))
    return torch.cat(sums)


def _subtrees(leaves_GWRH: Tensor, experts: ExpertWeights) -> Tensor:
    """Add leaves up to this rank's roots: ``[R, S, H]``."""
    sums_GRH = tree_sum(leaves_GWRH, dim=1)
    return tree_sum(sums_GRH).unsqueeze(1) if experts.is_whole else sums_GRH.transpose(0, 1)


def _grouped_product(x_XWC: Tensor, weight_EWHC: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply each expert's rows by its own weight, part by part: ``[X, W, H]``."""
    parts = zip(x_XWC.unbind(1), weight_EWHC.unbind(1), strict=True)
    outs = [
        F.grouped_mm(x_XC, weight_EHC.transpose(1, 2), offs=ends_E) for x_XC, weight_EHC in parts
    ]
    return torch.stack(outs, dim=1)
