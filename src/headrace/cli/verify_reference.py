"""``headrace verify DIR --against transformers``: is this checkpoint read and computed right."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console

from headrace.cli.source import ModelSource
from headrace.cli.verify_json import write_json
from headrace.cli.verify_prompts import PASSAGE, read_prompts
from headrace.core.errors import ConfigError
from headrace.text.tokenizer import Tokenizer

REFERENCES = ("transformers",)
MAX_PROMPT_TOKENS = 64


def verify_reference(source: ModelSource, prompts: Path | None, *, json_file: Path | None) -> bool:
    """Compare a checkpoint with the reference library, one line per layer as it is done.

    Args:
        source: The model.
        prompts: File with prompts, of which the longest is taken; None takes a built-in one.
        json_file: Where to write the report as well.

    Returns:
        Whether every stage computes the same.

    Raises:
        UserError: A damaged checkpoint, or the reference library is not installed.
    """
    # Torch comes with it, and no other command should wait for that.
    from headrace.models.compare import compare_with_transformers

    console = Console(highlight=False, markup=False)
    token_ids = _prompt(source, prompts)
    console.print(
        f"{source.name}: every layer alone in fp32, here and in transformers, on a prompt of "
        f"{len(token_ids)} tokens",
        soft_wrap=True,
    )
    report = compare_with_transformers(
        source.folder,
        token_ids,
        on_stage=lambda gap: console.print(gap.format(), soft_wrap=True),
    )
    console.print(report.summary(), soft_wrap=True)
    write_json(json_file, {"is_equal": report.is_equal, **msgspec.to_builtins(report)})
    return report.is_equal


def check_reference(name: str) -> None:
    """Refuse a reference that there is none of.

    Raises:
        ConfigError: Names those that there are.
    """
    if name not in REFERENCES:
        raise ConfigError(f"--against {name!r}: expected {' or '.join(REFERENCES)}")


def _prompt(source: ModelSource, prompts: Path | None) -> list[int]:
    tokenizer = Tokenizer.open(source.folder)
    if prompts is None:
        return tokenizer.encode("".join(PASSAGE))[:MAX_PROMPT_TOKENS]
    longest = max(read_prompts(prompts, tokenizer), key=lambda prompt: len(prompt.token_ids))
    return list(longest.token_ids[:MAX_PROMPT_TOKENS])
