"""Tensor views of a KV region, and the few things done to whole blocks.

Shape letters: G = KV heads held, N = blocks, S = slots of a block, D = head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

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
    ids = torch.tensor(list(block_ids), dtype=torch.long)
    return [
        _digest_layer(cache[:, :, ids].flatten(2, 3)[:, :, :num_tokens]) for cache in caches_2GNSD
    ]


def _digest_layer(kv_2GTD: Tensor) -> list[bytes]:
    num_full = kv_2GTD.shape[2] // DIGEST_TOKENS * DIGEST_TOKENS
    full_2GRKD = kv_2GTD[:, :, :num_full].unflatten(2, (-1, DIGEST_TOKENS))
    runs = list(full_2GRKD.permute(2, 0, 1, 3, 4).contiguous())
    if num_full < kv_2GTD.shape[2]:
        runs.append(kv_2GTD[:, :, num_full:].contiguous())
    # Bytes, not numbers: bf16 has no NumPy type, and NaN must equal itself.
    return [blake2b(run.view(torch.uint8).numpy(), digest_size=8).digest() for run in runs]
