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
from headrace.kernels.moe.grouping import group_pairs
from headrace.kernels.moe.leaves import Placement, subtrees, sum_pairs
from headrace.kernels.swiglu import swiglu

# Up to this many bytes of active experts are copied for one batched product; above, the copy costs
# more than a grouped product's walk over all experts.
MAX_GATHER_BYTES = 4 << 20

# Rows that share one set of grouped products: bounds the memory of a long prompt chunk.
MAX_SLAB_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """A rank's experts, packed for this kernel by ``pack_experts``.

    Attributes:
        gate_up_E1JH: Gate rows, then up rows, as one part.
        down_EWHC: Down projection by width part.
        placement: Where they stand in the sum.
    """

    gate_up_E1JH: Tensor
    down_EWHC: Tensor
    placement: Placement


def pack_experts(gate_up_EJH: Tensor, down_EHI: Tensor, placement: Placement) -> ExpertWeights:
    """Arrange a rank's expert weights once, at load.

    Args:
        gate_up_EJH: ``[E, 2I, H]``, gate rows first, in the dtype to multiply in (fp32 for
            canonical products). Kept by reference.
        down_EHI: ``[E, H, I]``, likewise; copied.
        placement: Where they stand in the sum.
    """
    down_EHWC = down_EHI.unflatten(2, (placement.num_parts, -1))
    return ExpertWeights(
        gate_up_E1JH=gate_up_EJH.unsqueeze(1),
        down_EWHC=down_EHWC.transpose(1, 2).contiguous(),
        placement=placement,
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
    local_ids_RK, weights_RK = experts.placement.local_ids[ids_RK], weights_RK.float()
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
    leaves_GWRH = weights_RK.new_zeros((experts.placement.num_groups, num_parts, num_rows, hidden))
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
        leaves_GWRH.flatten(1).index_add_(
            0, experts.placement.group_E[active_A], out_AWRH.flatten(1)
        )
    return subtrees(leaves_GWRH, experts.placement)


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
    hidden = x_RH.shape[1]
    num_experts, num_parts = experts.down_EWHC.shape[:2]
    pairs = group_pairs(ids_RK, num_experts=num_experts)
    x_XH = x_RH.new_zeros((pairs.num_padded, hidden), dtype=experts.down_EWHC.dtype)
    x_XH[pairs.places_P] = x_RH[pairs.rows_P].to(x_XH.dtype)
    gate_up_X1J = _grouped_product(x_XH.unsqueeze(1), experts.gate_up_E1JH, pairs.ends_E)
    act_XI = swiglu(gate_up_X1J.squeeze(1).to(x_RH.dtype)).to(x_XH.dtype)
    act_XWC = act_XI.unflatten(1, (num_parts, -1))
    out_XWH = _grouped_product(act_XWC, experts.down_EWHC, pairs.ends_E)
    return sum_pairs(out_XWH, pairs, weights_RK, experts.placement)


def _grouped_product(x_XWC: Tensor, weight_EWHC: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply each expert's rows by its own weight, part by part: ``[X, W, H]``."""
    parts = zip(x_XWC.unbind(1), weight_EWHC.unbind(1), strict=True)
    outs = [
        F.grouped_mm(x_XC, weight_EHC.transpose(1, 2), offs=ends_E) for x_XC, weight_EHC in parts
    ]
    return torch.stack(outs, dim=1)
