"""Samples are a function of model and seed."""

from pathlib import Path

import torch

from tools.tiny import checkpoint, samples

FILES = Path(__file__).parents[4] / "src" / "headrace" / "models" / "tiny" / "files"


def test_the_same_seed_writes_the_same_texts() -> None:
    target, _, tokenizer = checkpoint.load(FILES, torch.device("cpu"))
    first, second = (
        samples.write_samples(target, tokenizer, seed=3, max_tokens=4) for _ in range(2)
    )
    assert first == second
    assert all(map(str.startswith, first, samples.PROMPTS))


def test_only_the_likeliest_tokens_are_drawn() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0, -1.0]]).repeat(50, 1)
    drawn = samples.draw(logits, 2, torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {1, 2}
