"""Every kind of model the decoder computes, against the CPU's own model, over pools of NaN.

Shape letters: T = rows   B = rows of a decode step   C = chunks   P = block-table width
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.kernels.site import detect_site
from headrace.models.config import ModelConfig
from headrace.models.device.decoder import DeviceDecoder, Rows
from headrace.models.device.kernels import bind_kernels, model_sizes
from headrace.models.device.weights import arrange_weights
from tests.support.models_builders import (
    MOE_JSON,
    random_prompts,
    random_weights,
    teacher_forced_logits,
    tiny_config,
)
from tests.support.models_ranks import mono_model

BLOCK_SIZE, NUM_BLOCKS = 16, 12
# Ends inside a block, on its border, one past it; the last is a lone token.
PROMPTS = random_prompts((37, 32, 33, 1), vocab_size=96)
TABLES = [[7, 2, 11], [1, 9, 4], [3, 8, 5], [6]]
NOWHERE = 1_000_000
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "renormalised": {},
    "scores as they are": {"norm_topk_prob": False},
    "tied head": {"tie_word_embeddings": True},
    "yarn": {"rope_scaling": YARN, "max_position_embeddings": 256},
    "some dense layers": {"mlp_only_layers": [1]},
    "every second layer dense": {"decoder_sparse_step": 2},
    "few wide experts": {"num_experts": 6, "moe_intermediate_size": 40},
    "one KV head": {"num_key_value_heads": 1},
}


class Machine:
    """A decoder with pools in which nothing has been written: all of them NaN."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor]) -> None:
        self.decoder = DeviceDecoder(
            config=config, weights=arrange_weights(weights, config, num_positions=256)
        )
        sizes = model_sizes(config, block_size=BLOCK_SIZE)
        self.site = detect_site("cpu", dtype="float32", sizes=sizes)
        shape = (2, config.num_kv_heads, NUM_BLOCKS, BLOCK_SIZE, config.head_dim)
        self.pools = [torch.full(shape, torch.nan) for _ in range(config.num_layers)]

    def prefill(self, start: int, stop: int) -> list[Tensor]:
        """Return every row's logits of that piece of each prompt which has it."""
        pieces = [(prompt, start, min(stop, len(prompt))) for prompt in PROMPTS]
        kept = [index for index, (_, first, last) in enumerate(pieces) if first < last]
        lens = [pieces[index][2] - start for index in kept]
        tokens = [token for index in kept for token in PROMPTS[index][start:stop]]
        positions = [start + offset for count in lens for offset in range(count)]
        rows = [index for index, count in zip(kept, lens, strict=True) for _ in range(count)]
        starts = torch.tensor([0, *lens]).cumsum(0).int()
        logits = self.decoder.prefill(
            self._rows(tokens, positions, rows),
            self.pools,
            bind_kernels(self.site, num_tokens=len(tokens)),
            block_table_CP=_tables(kept),
            query_starts_C1=starts,
            seq_lens_C=torch.tensor([start + count for count in lens], dtype=torch.int32),
            max_query_len=max(lens),
            logit_rows_L=torch.arange(len(tokens)),
        )
        parts = dict(zip(kept, logits.split(lens), strict=True))
        return [parts.get(index, logits[:0]) for index in range(len(PROMPTS))]

    def decode(self, position: int, *, padding: int) -> dict[int, Tensor]:
        """Return logits of each prompt's token there; rows of padding stand behind them."""
        rows = [index for index, prompt in enumerate(PROMPTS) if position < len(prompt)]
        size = len(rows) + padding
        tokens = [PROMPTS[index][position] for index in rows]
        real = self._rows(tokens, [position] * len(rows), rows)
        nothing = torch.zeros(padding, dtype=torch.int64)
        table_BP = torch.full((size, 3), NOWHERE, dtype=torch.int32)
        table_BP[: len(rows)] = _tables(rows)
        lengths = [position + 1] * len(rows) + [0] * padding
        logits = self.decoder.decode(
            Rows(
                token_ids_T=torch.cat((real.token_ids_T, nothing)),
                positions_T=torch.cat((real.positions_T, nothing.int())),
                slots_T=torch.cat((real.slots_T, nothing.int() - 1)),
                num_rows_1=torch.tensor([len(rows)], dtype=torch.int32),
            ),
            self.pools,
            bind_kernels(self.site, num_tokens=size),
            block_table_BP=table_BP,
            seq_lens_B=torch.tensor(lengths, dtype=torch.int32),
        )
        return dict(zip(rows, logits, strict=False))

    def _rows(self, tokens: list[int], positions: list[int], rows: list[int]) -> Rows:
        slots = [
            TABLES[row][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for row, position in zip(rows, positions, strict=True)
        ]
        return Rows(
            token_ids_T=torch.tensor(tokens),
            positions_T=torch.tensor(positions, dtype=torch.int32),
            slots_T=torch.tensor(slots, dtype=torch.int32),
        )


def _tables(rows: list[int]) -> Tensor:
    """Return the block tables of some prompts; what no token reaches is no block at all."""
    table = torch.full((len(rows), 3), NOWHERE, dtype=torch.int32)
    for row_P, index in zip(table, rows, strict=True):
        row_P[: len(TABLES[index])] = torch.tensor(TABLES[index], dtype=torch.int32)
    return table


@pytest.fixture(scope="module", params=VARIANTS)
def model(request: pytest.FixtureRequest) -> tuple[Machine, list[Tensor]]:
    """A machine and the logits of every position of the prompts by the CPU's own model."""
    config = tiny_config(MOE_JSON, **VARIANTS[request.param])
    weights = random_weights(config)
    expected = teacher_forced_logits(mono_model(config, weights), PROMPTS, chunk=16)
    return Machine(config, weights), expected


@pytest.fixture
def machine(model: tuple[Machine, list[Tensor]]) -> Machine:
    for pool in model[0].pools:
        pool.fill_(torch.nan)
    return model[0]


@pytest.mark.parametrize("chunk", [1, 16, 20, 40])
def test_chunks_give_the_logits_of_the_cpus_model(machine, model, chunk: int) -> None:
    pieces = [machine.prefill(start, start + chunk) for start in range(0, 37, chunk)]
    for parts, expected in zip(zip(*pieces, strict=True), model[1], strict=True):
        assert (torch.cat(parts) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("padding", [0, 3])
def test_steps_go_on_from_a_chunk_and_padding_is_nobody(machine, model, padding: int) -> None:
    machine.prefill(0, 15)
    for position in range(15, 37):
        for row, logits in machine.decode(position, padding=padding).items():
            assert (logits - model[1][row][position]).abs().max() < 1e-4
    taken = torch.zeros(NUM_BLOCKS * BLOCK_SIZE, dtype=torch.bool)
    for prompt, table in zip(PROMPTS, TABLES, strict=True):
        for position in range(len(prompt)):
            taken[table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE] = True
    for pool in machine.pools:
        assert pool.flatten(2, 3)[:, :, ~taken].isnan().all()
        assert pool.flatten(2, 3)[:, :, taken].isfinite().all()
