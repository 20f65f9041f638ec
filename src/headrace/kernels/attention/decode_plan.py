"""How paged decode attention cuts a row's history into splits, and where the parts are kept.

A **split** is a run of consecutive tokens of one row that one program folds. Its size is a function
of the row's own length alone, so that a row's result does not depend on the batch beside it, and it
is worked out on the device, so that one CUDA graph serves every length.

Shape letters:
    B = rows of the batch   G = KV heads   R = query heads of a KV head   D = head dimension
    X = places for parts: the splits of the longest row
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Bytes of keys in a tile of 16-bit elements. Narrower elements are widened in registers, and a
# tile of more tokens would not fit there.
TILE_BYTES = 16384

REGISTERS_PER_PROCESSOR = 65536  # of compute capability 8.0 to 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeKnobs:
    """Launch settings of the Triton decode kernels.

    Attributes:
        tile_tokens: Tokens of one step of a program; a power of two, at least 16.
        base_tokens: Fewest tokens of a split; a multiple of ``tile_tokens``.
        max_splits: Splits that a row may have: those of a longer row are larger.
        programs_per_processor: Programs launched on each streaming multiprocessor.
        num_warps: Of a program.
        num_stages: Depth of the pipeline of tile loads.
    """

    tile_tokens: int = 64
    base_tokens: int = 256
    max_splits: int = 64
    programs_per_processor: int = 3
    num_warps: int = 4
    num_stages: int = 5

    @property
    def max_registers(self) -> int:
        """Registers of a thread, so that the programs of a processor fit together."""
        threads = self.programs_per_processor * self.num_warps * 32
        return min(255, REGISTERS_PER_PROCESSOR // threads // 8 * 8)

    def __post_init__(self) -> None:
        """Check the settings against each other.

        Raises:
            ValueError: They do not fit; the message says which.
        """
        if self.base_tokens % self.tile_tokens:
            raise ValueError(
                f"base_tokens must be a multiple of tile_tokens={self.tile_tokens}, "
                f"got {self.base_tokens}"
            )


# Rows of a step up to which short splits pay: larger batches fill the device without them.
FEW_ROWS, SOME_ROWS, MANY_ROWS = 8, 24, 64


def decode_knobs(
    *,
    num_kv_heads: int,
    head_dim: int,
    kv_bytes: int,
    queries_per_kv: int = 8,
    num_rows: int = 1,
) -> DecodeKnobs:
    """Choose launch settings by what is fixed for a padded size of an engine.

    Args:
        num_kv_heads: G of one rank.
        head_dim: D.
        kv_bytes: Bytes of an element of the pool.
        queries_per_kv: R.
        num_rows: Rows of the step, padding included: settings, and with them the last bits of a
            result, may differ between padded sizes, never within one.
    """
    tile_tokens = max(16, min(128, TILE_BYTES // (head_dim * max(kv_bytes, 2))))
    if num_rows <= FEW_ROWS:
        # A split is a tile, which is on its way in advance, until that makes too many.
        return DecodeKnobs(
            base_tokens=max(64, tile_tokens),
            tile_tokens=tile_tokens,
            max_splits=_few_splits(num_rows * num_kv_heads),
            num_stages=3 if num_rows <= 2 else 7,
        )
    if num_rows >= MANY_ROWS and queries_per_kv <= 8 and kv_bytes > 1:
        return DecodeKnobs(
            base_tokens=4096, tile_tokens=tile_tokens, programs_per_processor=4, num_stages=3
        )
    return DecodeKnobs(
        base_tokens=512 if num_rows <= SOME_ROWS else 2048 if num_rows < MANY_ROWS else 4096,
        tile_tokens=tile_tokens,
        programs_per_processor=3 if num_rows < MANY_ROWS else 2,
        # Triton 3.6 spends every other stage on the block table. This leaves two tiles of 16-bit
        # keys and values under way, four of 8-bit ones: 64 KiB, of which three fit a processor.
        num_stages=5 if kv_bytes > 1 else 9,
    )


def _few_splits(num_heads: int) -> int:
    """Return the splits of a row so that all its rows and KV heads fill a device twice."""
    splits = 64
    while splits > 4 and splits * num_heads > 256:
        splits //= 2
    return splits


def split_tokens(num_tokens: int, knobs: DecodeKnobs) -> int:
    """Return the split size of a row of ``num_tokens`` tokens; the kernels compute the same."""
    tiles = -(-num_tokens // (knobs.max_splits * knobs.tile_tokens))
    return max(knobs.base_tokens, tiles * knobs.tile_tokens)


def most_splits(max_tokens: int, knobs: DecodeKnobs) -> int:
    """Return the largest number of splits of a row of at most ``max_tokens`` tokens."""
    return max(1, min(knobs.max_splits, -(-max_tokens // knobs.base_tokens)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeScratch:
    """Buffers of the decode kernels, used by one launch at a time and reusable at once after it.

    Attributes:
        parts_BGXRD: fp32 outputs of splits, each divided by its own sum.
        lses_BGXR: fp32 base-2 logarithms of those sums, maxima included.
    """

    parts_BGXRD: Tensor
    lses_BGXR: Tensor


def make_decode_scratch(
    max_batch: int,
    max_tokens: int,
    *,
    num_kv_heads: int,
    queries_per_kv: int,
    head_dim: int,
    knobs: DecodeKnobs,
    device: torch.device | str,
) -> DecodeScratch:
    """Allocate the scratch of batches of up to ``max_batch`` rows.

    Args:
        max_batch: B at most.
        max_tokens: Tokens of the longest row: the block table's width times the block size.
        num_kv_heads: G.
        queries_per_kv: R.
        head_dim: D.
        knobs: The same that the kernels are launched with.
        device: Where.

    Cost:
        X * G * R * (D + 1) * 4 bytes a row, X being at most ``max_splits``; the launch touches only
        what its rows' lengths need.
    """
    lses = (max_batch, num_kv_heads, most_splits(max_tokens, knobs), queries_per_kv)
    return DecodeScratch(
        parts_BGXRD=torch.empty((*lses, head_dim), dtype=torch.float32, device=device),
        lses_BGXR=torch.empty(lses, dtype=torch.float32, device=device),
    )
