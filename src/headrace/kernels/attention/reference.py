"""Plain-torch paged attention.

Shape letters:
    T = query rows of the batch   H = query heads   G = KV heads   R = H / G   D = head dimension
    N = blocks of the pool        S = token slots of a block
    B = runs of a piece           A = runs of a span (the first A of the piece)
    M = rows of one KV head in a run, padded to 16      L = tiles of a span   K = KV_TILE_TOKENS
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.layouts import KV_TILE_TOKENS
from headrace.kernels.attention.plan import AttentionPlan, Piece, Span
from headrace.kernels.attention.single import attend_group


@dataclass(slots=True)
class _Running:
    """Online softmax of a piece: output not yet divided, sum of weights, and maximum."""

    out_GBMD: Tensor
    sum_GBM1: Tensor
    max_GBM1: Tensor


def paged_attention(
    q_THD: Tensor, pool_2GNSD: Tensor, plan: AttentionPlan, *, scale: float
) -> Tensor:
    """Attend each query to every key of its sequence up to its own position.

    For row t of a sequence at position p, head h and g = h // R:

        out[t, h] = sum_{j <= p} softmax_j(scale * q[t, h] . k[j, g]) v[j, g]

    The keys and values of the batch's own tokens must already be in the pool.

    Args:
        q_THD: Queries after RoPE; T may be 0. Not modified.
        pool_2GNSD: The layer's KV pool. Read only. Slots that hold no token of the sequence may
            hold anything, NaN included.
        plan: From ``plan_attention`` for this batch.
        scale: Softmax scale, normally ``D ** -0.5``.

    Returns:
        ``[T, H, D]`` in q's dtype, freshly allocated.

    Numerics:
        Scores, softmax and sums in fp32, one rounding at the end. Keys are folded in tiles of
        ``KV_TILE_TOKENS`` from position 0, one after the other, by online softmax; hidden keys
        contribute exact zeros and a wholly hidden tile changes nothing. Hence a row does not
        depend on the chunk that it is computed in, on the block size or on the other sequences,
        bit for bit. Error at most twice that of the library's attention in q's dtype. Rows of the
        plan's groups are the exception: they take one softmax over all their keys.

    Cost:
        4*M*D FLOPs per key, run and KV head; temporaries bounded by ``MAX_SPAN_ELEMENTS``. No
        host sync.

    Source:
        Online softmax after FlashAttention (arXiv 2205.14135); paging after PagedAttention
        (arXiv 2309.06180).
    """
    if scale != 1.0 and plan.groups:
        q_THD, scale = q_THD * scale, 1.0
    if len(plan.groups) == 1 and plan.groups[0].rows_B is None:
        return attend_group(q_THD, pool_2GNSD, plan.groups[0])
    out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
    for piece in plan.pieces:
        q_GBMD = _gather_queries(q_THD, piece, num_kv_heads=pool_2GNSD.shape[1])
        out_GBMD = _attend(q_GBMD.mul_(scale), pool_2GNSD, piece)
        _scatter_outputs(out_THD, out_GBMD, piece)
    for group in plan.groups:
        out_THD[group.rows_B] = attend_group(q_THD, pool_2GNSD, group)
    return out_THD


def _gather_queries(q_THD: Tensor, piece: Piece, *, num_kv_heads: int) -> Tensor:
    """Return fp32 ``[G, B, M, D]``: a KV head's rows together by (token, head), zero padded."""
    head_dim = q_THD.shape[-1]
    rows = q_THD if piece.batch_rows is None else q_THD[piece.batch_rows]
    rows_GBQRD = rows.view(piece.num_runs, piece.num_tokens, num_kv_heads, -1, head_dim).permute(
        2, 0, 1, 3, 4
    )
    shape = (num_kv_heads, piece.num_runs, piece.num_rows, head_dim)
    q_GBMD = torch.zeros(shape, dtype=torch.float32, device=q_THD.device)
    _real_rows(q_GBMD, rows_GBQRD.shape).copy_(rows_GBQRD)
    return q_GBMD


def _scatter_outputs(out_THD: Tensor, out_GBMD: Tensor, piece: Piece) -> None:
    num_kv_heads, _, _, head_dim = out_GBMD.shape
    queries_per_kv = out_THD.shape[1] // num_kv_heads
    shape = (num_kv_heads, piece.num_runs, piece.num_tokens, queries_per_kv, head_dim)
    out_BQGRD = _real_rows(out_GBMD, shape).permute(1, 2, 0, 3, 4)
    if piece.batch_rows is None:
        out_THD.view(out_BQGRD.shape).copy_(out_BQGRD)
    else:
        rows = out_BQGRD.reshape(-1, *out_THD.shape[1:])
        out_THD[piece.batch_rows] = rows.to(out_THD.dtype)


def _real_rows(rows_GBMD: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View the rows that are not padding as ``[G, B, Q, R, D]``."""
    num_tokens, queries_per_kv = shape[2], shape[3]
    real = rows_GBMD[:, :, : num_tokens * queries_per_kv]
    return real.unflatten(2, (num_tokens, queries_per_kv))


def _attend(q_GBMD: Tensor, pool_2GNSD: Tensor, piece: Piece) -> Tensor:
    state: _Running | None = None
    for span in piece.spans:
        q_GAMD = q_GBMD[:, : span.num_runs]
        state = _fold_span(q_GAMD, _gather_tiles(pool_2GNSD, span), span, state)
    assert state is not None  # every run has at least its own key
    return state.out_GBMD.div_(state.sum_GBM1)


def _gather_tiles(pool_2GNSD: Tensor, span: Span) -> Tensor:
    """Return fp32 ``[2, G*A*L, K, D]``, values zero where a tile has no token."""
    num_heads, head_dim = pool_2GNSD.shape[1], pool_2GNSD.shape[4]
    kv = pool_2GNSD.index_select(2, span.block_ids).float()
    if span.unwritten is not None:
        # 0 * NaN is NaN: whatever lies in unwritten slots must not meet the zero probabilities.
        kv[1].view(num_heads, -1, head_dim).index_fill_(1, span.unwritten, 0.0)
    return kv.view(2, -1, KV_TILE_TOKENS, head_dim)


def _fold_span(q_GAMD: Tensor, kv_2XKD: Tensor, span: Span, state: _Running | None) -> _Running:
    """Fold a span's tiles into the state of its runs, in place, and return it.

    Everything that does not depend on the tile before is done for all tiles at once (X = G*A*L
    products); the recurrence itself goes tile by tile.
    """
    num_heads, num_runs, num_rows, head_dim = q_GAMD.shape
    tiles = (num_heads, num_runs, span.num_tiles, num_rows)
    q_XMD = q_GAMD.unsqueeze(2).expand(*tiles, head_dim).reshape(-1, num_rows, head_dim)
    scores_XMK = torch.bmm(q_XMD, kv_2XKD[0].transpose(1, 2))
    scores = scores_XMK.view(*tiles, KV_TILE_TOKENS)
    if span.hidden_ALMK is not None:
        scores.masked_fill_(span.hidden_ALMK, -torch.inf)
    tile_maxima = scores.amax(-1, keepdim=True).unbind(2)
    maxima = [tile_maxima[0] if state is None else state.max_GBM1[:, :num_runs]]
    for tile_max in tile_maxima:
        maxima.append(torch.maximum(maxima[-1], tile_max))
    max_GALM1 = torch.stack(maxima[1:], dim=2)
    sums = scores.sub_(max_GALM1).exp_().sum(-1, keepdim=True).unbind(2)
    outs = torch.bmm(scores_XMK, kv_2XKD[1]).view(*tiles, head_dim).unbind(2)
    first = 0
    if state is None:
        state = _Running(out_GBMD=outs[0], sum_GBM1=sums[0], max_GBM1=maxima[1])
        first = 1
    for tile in range(first, span.num_tiles):
        decay_GAM1 = torch.exp(maxima[tile] - maxima[tile + 1])
        state.out_GBMD[:, :num_runs].mul_(decay_GAM1).add_(outs[tile])
        state.sum_GBM1[:, :num_runs].mul_(decay_GAM1).add_(sums[tile])
    state.max_GBM1[:, :num_runs] = maxima[-1]
    return state
