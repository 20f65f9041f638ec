"""What the passes of device sampling leave for each other: sizes and buffers.

Shape letters in this file:
    B = row capacity    C = chunks of a row    U = sub-blocks of a row    N = candidates of a row
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Planes of chunk_floats: of the raw logits, of the adjusted ones, and of the race.
RAW_MAX = 0
RAW_SUM = 1
BEST = 2
MASS = 3
FIRST_X = 4
SECOND_X = 5
NUM_CHUNK_FLOATS = 6
# Planes of chunk_ints.
BEST_ID = 0
FIRST_ID = 1
SECOND_ID = 2
NUM_CHUNK_INTS = 3
# Words of row_ints.
STATE = 0
CUT_KEY = 1
NUM_FOUND = 2
MAY_BE_SHORT = 3
# Words of row_floats.
ROW_BEST = 0
ROW_LOG_SUM = 1
ROW_MASS = 2
NUM_ROW_WORDS = 4

# States of a row between the passes.
DONE = 0
SELECT = 1
WHOLE_ROW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingKnobs:
    """Sizes of the passes: they change the time, never the meaning.

    Attributes:
        chunk: Logits that one program scans; a power of two.
        sub_block: Logits whose maximum is kept, to find a row's best k; a power of two.
        capacity: Most candidates of a row; a row with more is searched whole. A power of two.
        small: Up to so many candidates are ranked all against all; a power of two.
        block: Logits that the search of a whole row reads at once; a power of two.
        scan_warps: Warps of a scanning program.
        scan_registers: Registers per thread of it at most; None leaves them to the compiler.
        merge_warps: Warps of the program that merges a row's chunks.
        select_warps: Warps of the program that draws from a row's candidates.
        search_warps: Warps of the search of a whole row.
    """

    chunk: int = 4096
    sub_block: int = 256
    capacity: int = 4096
    small: int = 128
    block: int = 4096
    scan_warps: int = 8
    scan_registers: int | None = None
    merge_warps: int = 4
    select_warps: int = 8
    search_warps: int = 16

    def num_chunks(self, vocab_size: int) -> int:
        """Chunks of a row."""
        return -(-vocab_size // self.chunk)

    def num_sub_blocks(self, vocab_size: int) -> int:
        """Sub-blocks of a row that hold at least one token."""
        return -(-vocab_size // self.sub_block)

    def wide_count(self, vocab_size: int) -> int:
        """Return the sub-blocks whose maxima shall be candidates where no smaller number is sure.

        Were the logits in random order, taking every token from the j-th greatest maximum of S
        upwards would bring about -S ln(1 - j / S) of them; a third of the room leaves a reserve.
        """
        num_subs = self.num_sub_blocks(vocab_size)
        share = -math.expm1(-self.capacity / (3.0 * num_subs))
        return max(1, min(num_subs, math.ceil(num_subs * share)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Scratch of one batch; every call overwrites it. Addresses never change.

    Attributes:
        knobs: What the sizes follow from.
        chunk_floats_BC: fp32 ``[NUM_CHUNK_FLOATS, B, C]``.
        chunk_ints_BC: int32 ``[NUM_CHUNK_INTS, B, C]``.
        sub_max_BU: fp32 maxima of the adjusted logits.
        row_ints_B: int32 ``[B, NUM_ROW_WORDS]``.
        row_floats_B: float64 ``[B, NUM_ROW_WORDS]``.
        found_ids_BN: int32 ids of candidates, in no order.
        found_x_BN: fp32 their adjusted logits.
    """

    knobs: SamplingKnobs
    chunk_floats_BC: Tensor
    chunk_ints_BC: Tensor
    sub_max_BU: Tensor
    row_ints_B: Tensor
    row_floats_B: Tensor
    found_ids_BN: Tensor
    found_x_BN: Tensor

    @staticmethod
    def allocate(
        capacity: int, *, vocab_size: int, knobs: SamplingKnobs, device: torch.device | str
    ) -> Workspace:
        """Allocate for ``capacity`` rows."""
        num_chunks = knobs.num_chunks(vocab_size)
        num_subs = num_chunks * (knobs.chunk // knobs.sub_block)

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return Workspace(
            knobs=knobs,
            chunk_floats_BC=zeros(NUM_CHUNK_FLOATS, capacity, num_chunks, dtype=torch.float32),
            chunk_ints_BC=zeros(NUM_CHUNK_INTS, capacity, num_chunks, dtype=torch.int32),
            sub_max_BU=zeros(capacity, num_subs, dtype=torch.float32),
            row_ints_B=zeros(capacity, NUM_ROW_WORDS, dtype=torch.int32),
            row_floats_B=zeros(capacity, NUM_ROW_WORDS, dtype=torch.float64),
            found_ids_BN=zeros(capacity, knobs.capacity, dtype=torch.int32),
            found_x_BN=zeros(capacity, knobs.capacity, dtype=torch.float32),
        )
