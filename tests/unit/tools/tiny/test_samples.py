"""Samples are drawn as stated and come out the same for a seed."""

import pytest
import torch

from tests.support.tiny_trainer import SIZES, TableTarget, networks, tokenizer
from tools.tiny.samples import PROMPTS, draw, question, write_samples


def test_one_seed_gives_one_set_of_samples() -> None:
    target, _ = networks()
    first, again, other = (
        write_samples(target, tokenizer(), seed=seed, max_tokens=4) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_each_sample_continues_its_prompt_by_at_most_the_limit() -> None:
    texts = write_samples(networks()[0], tokenizer(), seed=1, max_tokens=3, top_k=1)
    assert len(texts) == len(PROMPTS) == 10
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert text.startswith(prompt)
        assert text != prompt


@pytest.mark.parametrize("stop", ["<|im_end|>", "<|endoftext|>"])
def test_a_sample_ends_with_a_stop_token(stop: str) -> None:
    probabilities = torch.full((SIZES.vocab_size, SIZES.vocab_size), 1e-9)
    probabilities[:, tokenizer().token_to_id(stop)] = 1.0
    target = TableTarget(probabilities)
    texts = write_samples(target, tokenizer(), seed=1, max_tokens=5)
    assert texts == [prompt + stop for prompt in PROMPTS]


@torch.inference_mode()
def test_a_sample_does_not_depend_on_the_ones_beside_it() -> None:
    target, _ = networks()
    texts = write_samples(target, tokenizer(), seed=1, max_tokens=3, top_k=1)
    shortest = min(range(10), key=lambda i: len(tokenizer().encode(PROMPTS[i]).ids))
    ids = tokenizer().encode(PROMPTS[shortest]).ids
    for _ in range(3):
        hidden, _ = target(torch.tensor([ids]))
        ids.append(target.logits(hidden[:, -1]).argmax().item())
    assert texts[shortest] == tokenizer().decode(ids, skip_special_tokens=False)


def test_only_the_likeliest_tokens_are_drawn_each_as_often_as_it_is_likely() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(4000, 4)
    drawn = draw(logits, 2, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn, minlength=4) / 4000
    assert share[2:].tolist() == [0.0, 0.0]
    assert share[0].item() == pytest.approx(0.5 / 0.8, abs=0.03)


def test_a_question_is_one_user_turn_and_the_head_of_the_answer() -> None:
    assert question("Why?") == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
