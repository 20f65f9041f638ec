"""Ten texts written by a saved model from fixed prompts and one seed."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.tiny.corpus import END_OF_TEXT
from tools.tiny.network import Target


def question(text: str) -> str:
    """One user turn as the chat template renders it, up to the assistant's answer."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = (
    "Once upon a time",
    "Nora was a brave girl who lived near the river.",
    "Alice looked at the garden and",
    question("Hello, who are you?"),
    question("What is the capital of France?"),
    question("Tell me a story about a fox."),
    question("What is 2 + 3?"),
    question("Why is the sky blue?"),
    question("Write a short poem."),
    question("My name is Nora. What is my name?"),
)


@torch.inference_mode()
def write_samples(
    target: Target,
    tokenizer: Tokenizer,
    *,
    seed: int,
    temperature: float = 0.6,
    top_k: int = 20,
    max_tokens: int = 320,
) -> list[str]:
    """Continue every prompt until a stop token, at most ``max_tokens`` further tokens.

    The whole text is recomputed for each token: without a cache this stays short enough to
    be obviously right, and ten prompts take seconds.
    """
    device = target.embed_tokens.weight.device
    generator = torch.Generator().manual_seed(seed)
    stops = {tokenizer.token_to_id(token) for token in (END_OF_TEXT, "<|im_end|>")}
    texts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    running = list(range(len(texts)))
    for _ in range(max_tokens):
        rows = [torch.tensor(texts[i]) for i in running]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        hidden, _ = target(tokens)
        last = torch.tensor([len(row) - 1 for row in rows], device=device)
        logits = target.logits(hidden[torch.arange(len(rows), device=device), last])
        # Drawn on the CPU, so that the stream of random numbers is the same on every device.
        drawn = draw(logits.cpu() / temperature, top_k, generator)
        for i, token in zip(running, drawn.tolist(), strict=True):
            texts[i].append(token)
        running = [i for i in running if texts[i][-1] not in stops]
        if not running:
            break
    return [tokenizer.decode(text, skip_special_tokens=False) for text in texts]


def draw(logits_BV: Tensor, top_k: int, generator: torch.Generator) -> Tensor:
    """One token a row among the ``top_k`` likeliest."""
    top, index = logits_BV.topk(top_k, dim=-1)
    choice = torch.multinomial(top.softmax(-1), 1, generator=generator)
    return index.gather(-1, choice)[:, 0]
