"""The prompts that ``verify`` runs: built-in English of telling lengths, or a file's lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.text.tokenizer import Tokenizer

LONG_TOKENS = 300

PASSAGE = (
    "The water came down from the hills in spring and filled the pond behind the mill. ",
    "A miller and his two daughters lived there with a grey dog and a great many hens. ",
    "Every morning the older girl opened the gate, and the wheel began to turn. ",
    "Some days the stream was high and loud, and flour flew about the room like snow. ",
    "In a dry summer it was only a thread of water between the stones. ",
    "Then the miller sat on the step and told stories about the sea, which he had never seen. ",
    "One evening a traveller asked them for bread and a place to sleep. ",
    "He paid with a small brass key and would not say which door it opened. ",
    "The younger girl tried it in every lock of the house, but it fitted none of them. ",
    "She hung it on a nail beside the window and soon forgot about it. ",
    "Years later a flood broke the old wall, and behind it stood a door. ",
    "Nobody spoke while she reached for the key and turned it slowly. ",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt and its tokens."""

    text: str
    token_ids: tuple[int, ...]


def builtin_prompts(tokenizer: Tokenizer, *, block_size: int, max_tokens: int) -> list[Prompt]:
    """Return prompts whose lengths are the awkward ones.

    A single token (nothing to transfer), a block and one token more or less, some blocks, a
    sentence as it is, and one of a few hundred tokens. They begin differently, so that none is
    another's prefix.

    Args:
        tokenizer: The model's.
        block_size: Of the decode ranks [tokens].
        max_tokens: Longest prompt that the model can take here [tokens].
    """
    sentence = tuple(tokenizer.encode(PASSAGE[0].strip()))
    lengths = (1, block_size - 1, block_size, block_size + 1, 3 * block_size + 5, LONG_TOKENS)
    cut = [
        _passage(tokenizer, start=1 + index, num_tokens=num_tokens)
        for index, num_tokens in enumerate(lengths)
        if num_tokens > 0
    ]
    return [
        Prompt(text=tokenizer.decode(ids[:max_tokens]), token_ids=ids[:max_tokens])
        for ids in (sentence, *cut)
    ]


def read_prompts(path: Path, tokenizer: Tokenizer) -> list[Prompt]:
    """Read one prompt per line; blank lines are passed over.

    Raises:
        ConfigError: No such file, no text, or no line with a prompt.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path}: expected a text file: {error}") from error
    lines = [line for line in text.splitlines() if line.strip()]
    prompts = [Prompt(text=line, token_ids=tuple(tokenizer.encode(line))) for line in lines]
    if not prompts:
        raise ConfigError(f"--prompts {path}: no line with text; expected one prompt per line")
    return prompts


def check_lengths(prompts: Sequence[Prompt], *, max_tokens: int) -> None:
    """Refuse prompts that would not fit.

    Raises:
        ConfigError: Names the first one.
    """
    for number, prompt in enumerate(prompts, 1):
        if not 1 <= len(prompt.token_ids) <= max_tokens:
            raise ConfigError(
                f"prompt {number} has {len(prompt.token_ids)} tokens: expected 1 to {max_tokens}, "
                f"so that the output fits behind it"
            )


def _passage(tokenizer: Tokenizer, *, start: int, num_tokens: int) -> tuple[int, ...]:
    turned = (*PASSAGE[start:], *PASSAGE[:start])
    ids: list[int] = []
    while len(ids) < num_tokens:
        ids += tokenizer.encode("".join(turned))
    return tuple(ids[:num_tokens])
