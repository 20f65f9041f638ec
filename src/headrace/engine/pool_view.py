"""Tensor views of a KV region, and the few things done to whole blocks.

Shape letters: G = KV heads held, N = blocks, S = slots of a block, D = head dimension.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.core.layouts import CacheLayout
from headrace.kernels.attention import view_kv_pool

# Length of the runs that ``digest_kv`` hashes: a divisor of every legal block size.
DIGEST_TOKENS = 16


def view_pool(region: memoryview, layout: CacheLayout) -> list[Tensor]:
    """View a region's bytes as one ``[2, G, N, S, D]`` tensor per layer, without a copy.

    The tensors keep ``region`` alive; drop them before unmapping it.
    """
    flat = torch.frombuffer(region, dtype=torch.uint8)
    return [view_kv_pool(flat, layout, layer=layer) for layer in range(len(layout.layers))]


def copy_block(caches_2GNSD: Sequence[Tensor], source: int, target: int) -> None:
    """Copy block ``source`` to ``target`` in every layer."""
    for cache in caches_2GNSD:
        cache[:, :, target] = cache[:, :, source]


def digest_kv(
    caches_2GNSD: Sequence[Tensor], block_ids: Sequence[int], num_tokens: int
) -> list[list[bytes]]:
    """Hash a sequence's KV so that two ranks with other block sizes can be compared.

    Args:
        caches_2GNSD: The pool's views.
        block_ids: The sequence's blocks from position 0.
        num_tokens: Tokens to cover [tokens].

    Returns:
        Per layer, one 8-byte digest for each run of ``DIGEST_TOKENS`` tokens (the last may be
        shorter); a run's bytes are ordered K|V, head, token, dim.
    """
    digests = []
    ids = torch.tensor(list(block_ids), dtype=torch.long)
    for cache in caches_2GNSD:
        kv_2GTD = cache[:, :, ids].flatten(2, 3)[:, :, :num_tokens]
        runs = kv_2GTD.view(torch.uint8).split(DIGEST_TOKENS, dim=2)
        digests.append(
            [
                hashlib.blake2b(run.contiguous().numpy().tobytes(), digest_size=8).digest()
                for run in runs
            ]
        )
    return digests
