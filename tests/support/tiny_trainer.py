"""A network, a tokenizer and a text small enough to test the embedded model's trainer with."""

import functools

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from tools.tiny import corpus
from tools.tiny.network import Mtp, Target, TinyConfig

SIZES = TinyConfig(
    vocab_size=288,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_experts=8,
    experts_per_token=2,
    expert_width=16,
    max_positions=64,
)
DOCUMENTS = (
    "Nora had a small garden near the river. Every day she gave it water.",
    "The fox asked the owl where the river began. The owl did not know.",
    "One day the garden was full of flowers, and Nora was happy.",
)
# After token t, each token's probability of being next, all powers of two: sums by hand stay easy.
NEXT = (
    (1 / 8, 1 / 2, 1 / 4, 1 / 8),
    (1 / 8, 1 / 8, 1 / 4, 1 / 2),
    (1 / 8, 1 / 2, 1 / 8, 1 / 4),
    (1 / 2, 1 / 8, 1 / 8, 1 / 4),
)


@functools.cache
def tokenizer() -> Tokenizer:
    return corpus.train_tokenizer(DOCUMENTS, SIZES.vocab_size)


def networks(config: TinyConfig = SIZES, *, seed: int = 0) -> tuple[Target, Mtp]:
    """Both networks with random weights large enough that every parameter shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        target, mtp = Target(config), Mtp(config)
    for parameter in (*target.parameters(), *mtp.parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.ndim == 1
        parameter.data = 1 + 0.3 * noise if is_norm else noise * parameter.shape[-1] ** -0.5
    return target.eval(), mtp.eval()


def tokens(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES.vocab_size, shape, generator=generator)


class TableTarget(nn.Module):
    """A target that knows only the last token: its logits are a row of a table."""

    def __init__(self, probabilities: Tensor) -> None:
        super().__init__()
        self.logarithms = probabilities.log()
        self.embed_tokens = nn.Embedding.from_pretrained(torch.eye(len(probabilities)))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed_tokens(tokens), torch.zeros(())

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.logarithms


class LaggingMtp(nn.Module):
    """An MTP layer that repeats what the target chose one token earlier."""

    def forward(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, torch.zeros(())
