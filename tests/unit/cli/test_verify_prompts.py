"""Built-in prompts have the awkward lengths; files are read line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.verify_prompts import (
    LONG_TOKENS,
    Prompt,
    builtin_prompts,
    check_lengths,
    read_prompts,
)
from headrace.core.errors import ConfigError
from headrace.text.tokenizer import Tokenizer
from tests.support.checkpoints import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_json(byte_tokenizer().to_str(), where="tests")


@pytest.mark.parametrize("block_size", [1, 16, 128])
def test_builtin_prompts_surround_a_block_boundary(tokenizer: Tokenizer, block_size: int) -> None:
    prompts = builtin_prompts(tokenizer, block_size=block_size, max_tokens=4096)
    lengths = {len(prompt.token_ids) for prompt in prompts}
    assert {1, block_size, block_size + 1, LONG_TOKENS} <= lengths
    assert 0 not in lengths
    assert all(tokenizer.decode(prompt.token_ids) == prompt.text for prompt in prompts)


def test_no_builtin_prompt_begins_with_anothers_block(tokenizer: Tokenizer) -> None:
    prompts = builtin_prompts(tokenizer, block_size=16, max_tokens=4096)
    heads = [prompt.token_ids[:16] for prompt in prompts]
    assert len(set(heads)) == len(heads)


def test_builtin_prompts_are_cut_to_a_small_model(tokenizer: Tokenizer) -> None:
    prompts = builtin_prompts(tokenizer, block_size=16, max_tokens=20)
    assert max(len(prompt.token_ids) for prompt in prompts) == 20
    check_lengths(prompts, max_tokens=20)


def test_a_file_has_a_prompt_on_each_line_that_is_not_blank(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\n  \ntwo words\n", encoding="utf-8")
    prompts = read_prompts(path, tokenizer)
    assert [prompt.text for prompt in prompts] == ["one", "two words"]
    assert prompts[0].token_ids == tuple(tokenizer.encode("one"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "expected a text file"), (b"\xff\xfe", "expected a text file"), (b"\n", "no line")],
)
def test_a_file_without_prompts_is_one_clear_line(
    tokenizer: Tokenizer, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_prompts(path, tokenizer)


@pytest.mark.parametrize("num_tokens", [0, 11])
def test_a_prompt_that_does_not_fit_is_named(num_tokens: int) -> None:
    prompts = [Prompt(text="a", token_ids=(1,)), Prompt(text="b", token_ids=(1,) * num_tokens)]
    with pytest.raises(ConfigError, match=f"prompt 2 has {num_tokens} tokens: expected 1 to 10"):
        check_lengths(prompts, max_tokens=10)
