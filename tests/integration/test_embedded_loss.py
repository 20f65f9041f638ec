"""The embedded model is as good as its card says: held-out loss recomputed from the weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace.core.layouts import CacheLayout
from headrace.core.sharding import Role, Sharding
from headrace.kernels.attention import view_kv_pool
from headrace.models.checkpoint.folder import read_config
from headrace.models.checkpoint.load import load_weights
from headrace.models.common.decoder import Decoder
from headrace.models.embedded import embedded_folder
from headrace.models.forward_batch import SequenceChunk, build_forward_batch
from headrace.models.registry import load_model
from headrace.models.setup import ModelSetup
from headrace.models.shard import shard_of
from headrace.models.slices import weight_slices
from headrace.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
HELD_OUT = ROOT / "tests" / "data" / "heldout_grammar.txt"
CARD = ROOT / "docs" / "model-card.md"
BLOCK_SIZE = 128
PIECE_TOKENS = 1024
END = "<|endoftext|>"


def figure_of_the_card() -> float:
    """Return the loss that the card names for the test file."""
    row = next(
        line
        for line in CARD.read_text("utf-8").splitlines()
        if f"`tests/data/{HELD_OUT.name}`" in line
    )
    found = re.search(r"\*\*(\d+\.\d+)\*\*", row)
    assert found is not None
    return float(found.group(1))


def pieces(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yield the file's documents as the card's protocol cuts them."""
    end = tokenizer.token_id(END)
    assert end is not None
    for document in HELD_OUT.read_text("utf-8").split(f"\n{END}\n"):
        text = document.removesuffix(END).removesuffix("\n") if document.endswith(END) else document
        if text.strip():
            ids = [*tokenizer.encode(text), end]
            yield from (ids[i : i + PIECE_TOKENS] for i in range(0, len(ids), PIECE_TOKENS))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    folder = embedded_folder()
    config = read_config(folder)
    specs = weight_slices(config, Sharding(), Role.MONO, rank=0)
    weights = load_weights(folder, specs, dtype=torch.float32)
    shard = shard_of(config, Sharding(), Role.MONO, rank=0)
    model = load_model(weights, ModelSetup(config=config, shard=shard, dtype=torch.float32))
    assert isinstance(model, Decoder)
    return model


def total_loss(decoder: Decoder, ids: list[int]) -> tuple[float, int]:
    """Return the summed -ln p of a piece's predictions and their number."""
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    layout = CacheLayout(
        layers=decoder.cache_schema,
        first_head=0,
        num_heads=decoder.cache_schema[0].num_kv_heads,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
    )
    region = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    chunk = SequenceChunk(token_ids=ids, start=0, block_ids=range(num_blocks))
    batch = build_forward_batch([chunk], decoder.attention_shape(BLOCK_SIZE))
    x_TH = decoder.embed(batch.token_ids_T)
    for layer in range(len(layout.layers)):
        cache = view_kv_pool(region, layout, layer=layer)
        x_TH = decoder.run_layer(layer, x_TH, batch=batch, cache=cache)
    logits_TV = decoder.logits(x_TH)[:-1]
    targets_T = torch.tensor(ids[1:])
    loss = torch.nn.functional.cross_entropy(logits_TV.double(), targets_T, reduction="sum")
    return float(loss), len(ids) - 1


def test_the_held_out_loss_is_the_cards_to_one_percent(decoder: Decoder) -> None:
    tokenizer = Tokenizer.open(embedded_folder())
    losses = [total_loss(decoder, ids) for ids in pieces(tokenizer)]
    num_predictions = sum(count for _, count in losses)
    assert num_predictions == 11_662, "the card's protocol cuts the file otherwise"
    mean = sum(loss for loss, _ in losses) / num_predictions
    assert mean == pytest.approx(figure_of_the_card(), rel=0.01)


def test_a_shuffled_file_would_not_pass(decoder: Decoder) -> None:
    tokenizer = Tokenizer.open(embedded_folder())
    ids = next(pieces(tokenizer))
    loss, count = total_loss(decoder, ids[::-1])
    assert loss / count > 2 * figure_of_the_card()
