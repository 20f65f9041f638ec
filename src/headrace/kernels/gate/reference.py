"""Plain-torch top-k gate.

Shape letters: T = tokens   E = experts   K = experts per token
"""

from __future__ import annotations

import torch
from torch import Tensor


def gate_topk(
    logits_TE: Tensor, *, top_k: int, renormalize: bool, exact: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose each token's experts.

    Args:
        logits_TE: Gate logits in the model dtype. Not modified.
        top_k: K, at most E.
        renormalize: Make the chosen scores sum to one.
        exact: Equal scores go to the lower expert id; otherwise as the library's top-k likes.

    Returns:
        ``weights_TK`` in the logits' dtype and ``ids_TK`` int64, highest score first.

    Numerics:
        Softmax over all experts and the renormalisation in fp32, then one rounding, as the
        reference library does. Row-local.

    Cost:
        A stable sort of each row: O(T E log E). No host sync.
    """
    if not exact and renormalize:
        # Scores that sum to one over the chosen are a softmax over the chosen alone.
        chosen_TK, ids_TK = logits_TE.topk(top_k)
        return torch.softmax(chosen_TK, -1, dtype=torch.float32).to(logits_TE.dtype), ids_TK
    # The library's top-k breaks ties as it likes; bf16 logits tie often.
    scores_TE = torch.softmax(logits_TE, dim=-1, dtype=torch.float32)
    scores_TE, ids_TE = scores_TE.sort(dim=-1, descending=True, stable=True)
    scores_TK = scores_TE[:, :top_k]
    if renormalize:
        scores_TK = scores_TK / scores_TK.sum(dim=-1, keepdim=True)
    return scores_TK.to(logits_TE.dtype), ids_TE[:, :top_k]
