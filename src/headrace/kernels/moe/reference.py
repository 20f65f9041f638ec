"""Plain-torch grouped expert MLP.

Shape letters:
    R = token rows   K = experts per token   E = experts held   H = hidden width
    I = expert width held   W = width parts held   C = I / W, columns of a part
    P = (row, expert) pairs whose expert is held   X = pair rows, each expert's padded to 16
    A = experts with pairs   O = 16 rows
    G = expert groups held   S = subtrees: 1 when the experts are held in full, else G
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels.linear import ROW_MULTIPLE
from headrace.kernels.moe.grouping import Pairs, group_pairs
from headrace.kernels.swiglu import swiglu
from headrace.kernels.tree import tree_sum

# Below this many bytes, the active experts' weights are gathered for one batched product; above,
# the copy costs more than a grouped product's walk over all experts.
MAX_GATHER_BYTES = 4 << 20

# Elements of the leaves of one slab of rows: bounds the memory of a long prompt chunk.
MAX_SLAB_ELEMENTS = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """A rank's experts, packed for this kernel by ``pack_experts``.

    Attributes:
        gate_up_EHJ: ``[E, H, 2I]``, gate columns first.
        down_EWCH: Down projection by width part, contiguous.
        first_expert: Model-wide id of the first expert held.
        num_groups: G.
        is_whole: The experts' whole width is held.
        exact: Canonical products in fp32; otherwise in the weights' own dtype.
    """

    gate_up_EHJ: Tensor
    down_EWCH: Tensor
    first_expert: int
    num_groups: int
    is_whole: bool
    exact: bool


def pack_experts(
    gate_up_EJH: Tensor,
    down_EHI: Tensor,
    *,
    first_expert: int,
    num_groups: int,
    num_parts: int,
    is_whole: bool,
    exact: bool,
) -> ExpertWeights:
    """Arrange a rank's expert weights once, at load.

    Args:
        gate_up_EJH: ``[E, 2I, H]``, gate rows first. Kept by reference when fp32 or not exact.
        down_EHI: ``[E, H, I]``; copied.
        first_expert: Model-wide id of the first expert held.
        num_groups: Expert groups held; divides E.
        num_parts: Width parts held; divides I.
        is_whole: These are all the width parts of the model.
        exact: Keep an fp32 compute copy.
    """
    if exact:
        gate_up_EJH, down_EHI = gate_up_EJH.float(), down_EHI.float()
    down_EWCH = down_EHI.unflatten(2, (num_parts, -1)).permute(0, 2, 3, 1).contiguous()
    return ExpertWeights(
        gate_up_EHJ=gate_up_EJH.transpose(1, 2),
        down_EWCH=down_EWCH,
        first_expert=first_expert,
        num_groups=num_groups,
        is_whole=is_whole,
        exact=exact,
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
        ids_RK: int64 model-wide expert ids, different within a row; ids of experts not held
            (negative ones too) are passed over. Not modified.
        weights_RK: Gate weights, any float dtype. Not modified.
        experts: The rank's experts.

    Returns:
        fp32 ``[R, S, H]`` in leaf order; rows without an expert here are +0.

    Numerics:
        Gate, up, silu and act are rounded to x's dtype where the reference library holds them so;
        down products, weighting and sums stay in fp32. A row does not depend on the other rows.

    Cost:
        6*X*H*I FLOPs; leaves of at most ``MAX_SLAB_ELEMENTS`` at a time (or of 16 rows). One host
        sync (rows per expert).
    """
    num_parts, hidden = experts.down_EWCH.shape[1], x_RH.shape[1]
    leaf_elements = experts.num_groups * num_parts * hidden
    slab = max(ROW_MULTIPLE, MAX_SLAB_ELEMENTS // leaf_elements)
    if x_RH.shape[0] <= slab:
        return _slab_partials(x_RH, ids_RK, weights_RK, experts)
    slabs = zip(x_RH.split(slab), ids_RK.split(slab), weights_RK.split(slab), strict=True)
    return torch.cat([_slab_partials(*rows, experts) for rows in slabs])


def _slab_partials(
    x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor, experts: ExpertWeights
) -> Tensor:
    num_experts, num_parts, _, hidden = experts.down_EWCH.shape
    num_rows = x_RH.shape[0]
    leaves = torch.zeros(
        (num_rows * experts.num_groups, num_parts * hidden), dtype=torch.float32, device=x_RH.device
    )
    pairs = group_pairs(ids_RK, first_expert=experts.first_expert, num_experts=num_experts)
    if pairs.num_pairs:
        out_PWH = _pair_outputs(x_RH, pairs, experts)
        weights_P11 = weights_RK.flatten()[pairs.slots_P].float()[:, None, None]
        group_P = pairs.experts_P // (num_experts // experts.num_groups)
        leaf_P = pairs.rows_P * experts.num_groups + group_P
        # Pairs are in ascending expert order, and so is what meets in one leaf.
        leaves.index_add_(0, leaf_P, out_PWH.mul_(weights_P11).flatten(1))
    leaves_RGWH = leaves.view(num_rows, experts.num_groups, num_parts, hidden)
    if experts.is_whole:
        return tree_sum(leaves_RGWH.flatten(1, 2), dim=1).unsqueeze(1)
    return tree_sum(leaves_RGWH, dim=2)


def _pair_outputs(x_RH: Tensor, pairs: Pairs, experts: ExpertWeights) -> Tensor:
    """Run the MLP of each pair: fp32 ``[P, W, H]``, not yet weighted."""
    product_dtype = experts.down_EWCH.dtype
    x_XH = torch.zeros((pairs.num_padded, x_RH.shape[1]), dtype=product_dtype, device=x_RH.device)
    x_XH[pairs.places_P] = x_RH[pairs.rows_P].to(product_dtype)
    product = _gathered if _is_small(pairs, experts) else _grouped
    gate_up_X1J = product(x_XH.unsqueeze(1), experts.gate_up_EHJ.unsqueeze(1), pairs)
    act_XI = swiglu(gate_up_X1J.squeeze(1).to(x_RH.dtype)).to(product_dtype)
    act_XWC = act_XI.unflatten(1, (experts.down_EWCH.shape[1], -1))
    return product(act_XWC, experts.down_EWCH, pairs)[pairs.places_P].float()


def _is_small(pairs: Pairs, experts: ExpertWeights) -> bool:
    """Whether every expert has at most one run of 16 rows and gathering weights is cheap."""
    if pairs.num_padded != len(pairs.active_A) * ROW_MULTIPLE:
        return False
    gathered_bytes = len(pairs.active_A) * experts.gate_up_EHJ[0].nbytes
    return len(pairs.active_A) == len(experts.gate_up_EHJ) or gathered_bytes <= MAX_GATHER_BYTES


def _gathered(x_XWN: Tensor, weight_EWNM: Tensor, pairs: Pairs) -> Tensor:
    """Multiply part by part in one batched product; bit-equal to ``_grouped``."""
    if len(pairs.active_A) < len(weight_EWNM):
        weight_EWNM = weight_EWNM[pairs.active_A]
    x_AWON = x_XWN.unflatten(0, (-1, ROW_MULTIPLE)).transpose(1, 2)
    out_AWOM = torch.bmm(x_AWON.flatten(0, 1), weight_EWNM.flatten(0, 1))
    return out_AWOM.unflatten(0, x_AWON.shape[:2]).transpose(1, 2).flatten(0, 1)


def _grouped(x_XWN: Tensor, weight_EWNM: Tensor, pairs: Pairs) -> Tensor:
    """Multiply part by part, each over all experts."""
    parts = zip(x_XWN.unbind(1), weight_EWNM.unbind(1), strict=True)
    outs = [F.grouped_mm(x_XN, weight_ENM, offs=pairs.ends_E) for x_XN, weight_ENM in parts]
    return torch.stack(outs, dim=1) if len(outs) > 1 else outs[0].unsqueeze(1)
