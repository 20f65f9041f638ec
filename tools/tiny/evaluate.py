"""Held-out measures of a saved model, by the protocol that ``docs/model-card.md`` states.

A document is its tokens followed by ``<|endoftext|>``, with nothing in front.  It is cut into
pieces of at most ``window`` tokens; each piece is scored alone, positions counted from 0, and a
piece of n tokens gives n - 1 predictions.  The loss is the mean over all predictions of all
pieces, so long documents weigh more than short ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tools.tiny.network import Layer, Mtp, Target

WINDOW = 1024


def pieces_of(encoded: Sequence[np.ndarray], window: int) -> list[np.ndarray]:
    """Cut documents into pieces; a last piece of one token has nothing to predict."""
    cuts = (ids[first : first + window] for ids in encoded for first in range(0, len(ids), window))
    return [cut for cut in cuts if len(cut) > 1]


def batches(pieces: Sequence[np.ndarray], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens ``[B, T]`` padded on the right and the true lengths ``[B]``, shortest first."""
    ordered = [torch.from_numpy(piece.astype(np.int64)) for piece in sorted(pieces, key=len)]
    for first in range(0, len(ordered), size):
        group = ordered[first : first + size]
        lengths = torch.tensor([len(piece) for piece in group])
        yield torch.nn.utils.rnn.pad_sequence(group, batch_first=True), lengths


@torch.inference_mode()
def score(
    target: Target, mtp: Mtp, encoded: Sequence[np.ndarray], *, window: int = WINDOW
) -> dict[str, Any]:
    """Loss and greedy hits of the target, and how often the MTP layer guesses two tokens ahead.

    ``mtp_acceptance`` is the share of positions t where the draft made from h_t and token t+1
    is the token that the target itself would choose after token t+1.
    """
    device = target.embed_tokens.weight.device
    sums = dict.fromkeys(("predictions", "nats", "hits", "drafts", "accepted", "draft_hits"), 0.0)
    for tokens, lengths in batches(pieces_of(encoded, window), 32):
        tokens, lengths = tokens.to(device), lengths.to(device)
        hidden, _ = target(tokens)
        logits = target.logits(hidden)
        draft_hidden, _ = mtp(target.embed_tokens(tokens[:, 1:]), hidden[:, :-1])
        draft = target.logits(draft_hidden)[:, :-1].argmax(-1)
        choice = logits[:, :-1].argmax(-1)
        position = torch.arange(tokens.shape[1] - 1, device=device)
        valid = position < lengths[:, None] - 1
        nats = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
        sums["predictions"] += valid.sum().item()
        sums["nats"] += nats[valid].double().sum().item()
        sums["hits"] += (choice == tokens[:, 1:])[valid].sum().item()
        sums["drafts"] += valid[:, 1:].sum().item()
        sums["accepted"] += (draft == choice[:, 1:])[valid[:, 1:]].sum().item()
        sums["draft_hits"] += (draft == tokens[:, 2:])[valid[:, 1:]].sum().item()
    return {
        "documents": len(encoded),
        "predictions": int(sums["predictions"]),
        "loss_nats_per_token": round(sums["nats"] / sums["predictions"], 5),
        "greedy_hit": round(sums["hits"] / sums["predictions"], 4),
        "mtp_acceptance": round(sums["accepted"] / max(sums["drafts"], 1), 4),
        "mtp_text_hit": round(sums["draft_hits"] / max(sums["drafts"], 1), 4),
    }


@torch.inference_mode()
def loss_by_position(target: Target, rows: np.ndarray, edges: Sequence[int]) -> dict[str, float]:
    """Mean nats of packed rows between consecutive ``edges``: what long contexts cost."""
    device = target.embed_tokens.weight.device
    total = torch.zeros(rows.shape[1] - 1, dtype=torch.float64, device=device)
    for row in rows:
        tokens = torch.from_numpy(row.astype(np.int64)).to(device)[None]
        logits = target.logits(target(tokens[:, :-1])[0])
        total += F.cross_entropy(logits[0], tokens[0, 1:], reduction="none").double()
    mean = total / len(rows)
    spans = zip(edges[:-1], edges[1:], strict=True)
    return {f"{low}-{high - 1}": round(mean[low:high].mean().item(), 4) for low, high in spans}


@torch.inference_mode()
def expert_shares(target: Target, encoded: Sequence[np.ndarray]) -> list[list[float]]:
    """Share of a layer's selections that each expert gets, one list a layer; even is 1/experts."""
    experts = [layer.mlp for layer in target.layers if isinstance(layer, Layer)]
    counts = torch.zeros(len(experts), target.config.num_experts, dtype=torch.float64)

    def count(index: int, valid: Tensor, x: Tensor) -> None:
        _, weight = experts[index].route(x)
        counts[index] += (weight[valid] > 0).sum(0).cpu()

    for tokens, lengths in batches(pieces_of(encoded, WINDOW), 32):
        valid = torch.arange(tokens.shape[1]) < lengths[:, None]
        hooks = [
            module.register_forward_pre_hook(
                lambda _module, args, index=index, valid=valid: count(index, valid, args[0])
            )
            for index, module in enumerate(experts)
        ]
        target(tokens.to(target.embed_tokens.weight.device))
        for hook in hooks:
            hook.remove()
    shares = counts / counts.sum(-1, keepdim=True)
    return [[round(share, 4) for share in layer] for layer in shares.tolist()]
