"""Inputs of the paged attention kernels, and the answers they are held against.

Shape letters:
    B = rows or sequences   H = query heads   G = KV heads   R = H / G   D = head dimension
    N = blocks of the pool  S = token slots of a block       P = width of the block table
    T = query tokens        L = tokens of one sequence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Sizes of an attention layer.

    Attributes:
        num_heads: H.
        num_kv_heads: G.
        head_dim: D.
        block_size: S.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int = 128
    block_size: int = 64

    @property
    def scale(self) -> float:
        """The usual softmax scale."""
        return self.head_dim**-0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """One decode step: ``batch`` rows of ``num_tokens`` tokens each."""

    batch: int
    num_tokens: int
    heads: Heads


QWEN3_30B = Heads(num_heads=32, num_kv_heads=4)

# What the decode kernel is tuned for, batch and length against heads.
DECODE_SHAPES = (
    DecodeShape(batch=64, num_tokens=4096, heads=Heads(num_heads=64, num_kv_heads=4)),
    DecodeShape(batch=128, num_tokens=1024, heads=QWEN3_30B),
    DecodeShape(batch=4, num_tokens=8192, heads=Heads(num_heads=64, num_kv_heads=4)),
    DecodeShape(batch=1, num_tokens=32768, heads=Heads(num_heads=64, num_kv_heads=4)),
    DecodeShape(batch=8, num_tokens=6144, heads=Heads(num_heads=16, num_kv_heads=1)),
    DecodeShape(batch=1, num_tokens=1024, heads=QWEN3_30B),
    DecodeShape(batch=256, num_tokens=1024, heads=QWEN3_30B),
)


@dataclass(slots=True, kw_only=True)
class PagedCache:
    """A pool in which some sequences lie scattered, and by default NaN everywhere else.

    Attributes:
        pool_2GNSD: The pool.
        block_table_BP: int32; entries past a sequence's last block are out of every range.
        seq_lens_B: int32.
    """

    pool_2GNSD: Tensor
    block_table_BP: Tensor
    seq_lens_B: Tensor


def make_cache(
    lengths: Sequence[int],
    heads: Heads,
    *,
    dtype: torch.dtype,
    seed: int = 0,
    device: str = "cpu",
    width: int = 0,
    tail: float = float("nan"),
) -> PagedCache:
    """Fill a pool with random sequences.

    Args:
        lengths: Tokens of each.
        heads: Sizes.
        dtype: Of the pool.
        seed: Of everything random. A sequence's keys and values depend on it and on its place
            in the batch only.
        device: Where.
        width: P; as much as the longest needs when 0.
        tail: What lies past a sequence's end in its own last block.
    """
    generator = torch.Generator().manual_seed(seed)
    size = heads.block_size
    needs = [-(-length // size) for length in lengths]
    width = max(width, 1, *needs) if needs else max(width, 1)
    ids = torch.randperm(sum(needs) + 1, generator=generator).to(torch.int32)
    shape = (2, heads.num_kv_heads, len(ids), size, heads.head_dim)
    pool = torch.full(shape, torch.nan, device=device).to(dtype)
    table_BP = torch.full((len(lengths), width), 1 << 30, dtype=torch.int32)
    first = 0
    for row, (length, need) in enumerate(zip(lengths, needs, strict=True)):
        table_BP[row, :need] = ids[first : first + need]
        own = torch.Generator(device).manual_seed(seed * 1000 + row)
        kv = torch.randn(2, shape[1], length, shape[4], generator=own, device=device)
        for block in range(need):
            part = kv[:, :, block * size : (block + 1) * size].to(dtype)
            place = pool[:, :, int(table_BP[row, block])]
            place[:, :, part.shape[2] :] = tail
            place[:, :, : part.shape[2]] = part
        first += need
    return PagedCache(
        pool_2GNSD=pool,
        block_table_BP=table_BP.to(device),
        seq_lens_B=torch.tensor(lengths, dtype=torch.int32, device=device),
    )


def make_queries(
    num_tokens: int, heads: Heads, *, dtype: torch.dtype, device: str = "cpu"
) -> Tensor:
    """Return random queries ``[num_tokens, H, D]``, each independent of the rest."""
    generator = torch.Generator(device).manual_seed(7)
    shape = (num_tokens, heads.num_heads, heads.head_dim)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillShape:
    """One prefill step: chunk and sequence lengths, against heads."""

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    heads: Heads


# A whole prompt, many short ones, a chunk far into a long prompt, one token beside a chunk.
PREFILL_SHAPES = (
    PrefillShape(query_lens=(8192,), seq_lens=(8192,), heads=QWEN3_30B),
    PrefillShape(query_lens=(512,) * 16, seq_lens=(512,) * 16, heads=QWEN3_30B),
    PrefillShape(query_lens=(4096,), seq_lens=(32768,), heads=QWEN3_30B),
    PrefillShape(query_lens=(2048, 1), seq_lens=(2048, 5000), heads=QWEN3_30B),
)


def query_starts(query_lens: Sequence[int], *, device: str = "cpu") -> Tensor:
    """Return int32 ``[B + 1]``: where each chunk begins, and the end."""
    sums = torch.tensor([0, *query_lens]).cumsum(0)
    return sums.to(device=device, dtype=torch.int32)


def attend_exactly(
    q_THD: Tensor,
    cache: PagedCache,
    row: int,
    *,
    scale: float,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Attend the last T tokens of one sequence by the textbook, in one dtype throughout.

    Args:
        q_THD: The queries of the sequence's last T tokens.
        cache: Where its keys and values are.
        row: Which sequence.
        scale: Softmax scale.
        dtype: Of every operand and result: fp64 for the answer, q's own for the plain path that
            errors are compared with.

    Returns:
        ``[T, H, D]``; zeros when the sequence is empty.
    """
    length = int(cache.seq_lens_B[row])
    if length == 0:
        return torch.zeros(q_THD.shape, dtype=dtype, device=q_THD.device)
    size = cache.pool_2GNSD.shape[3]
    blocks = cache.block_table_BP[row, : -(-length // size)].long()
    kv_2GLD = cache.pool_2GNSD.index_select(2, blocks).flatten(2, 3)[:, :, :length].to(dtype)
    repeats = q_THD.shape[1] // kv_2GLD.shape[1]
    k_HLD, v_HLD = kv_2GLD.repeat_interleave(repeats, dim=1)
    scores_HTL = q_THD.to(dtype).transpose(0, 1) @ k_HLD.transpose(1, 2) * scale
    positions_T = torch.arange(length - q_THD.shape[0], length, device=q_THD.device)
    is_later_TL = torch.arange(length, device=q_THD.device) > positions_T[:, None]
    weights_HTL = torch.softmax(scores_HTL.masked_fill(is_later_TL, -torch.inf), -1)
    return (weights_HTL @ v_HLD).transpose(0, 1)
