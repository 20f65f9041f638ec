"""What is written is a released-layout checkpoint, and reads back to the same network."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.tiny import checkpoint

FILES = Path(__file__).parents[4] / "src" / "headrace" / "models" / "tiny" / "files"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def names_in(path: Path) -> set[str]:
    with safe_open(path, "pt") as file:
        return set(file.keys())


def test_logits_equal_the_reference_library() -> None:
    target, _, _ = checkpoint.load(FILES, torch.device("cpu"))
    reference = AutoModelForCausalLM.from_pretrained(FILES, dtype=torch.float32).eval()
    tokens = torch.arange(300, 340)[None]
    with torch.inference_mode():
        ours, theirs = target.logits(target(tokens)[0]), reference(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_saving_what_was_loaded_gives_the_same_files(tmp_path: Path) -> None:
    target, mtp, tokenizer = checkpoint.load(FILES, torch.device("cpu"))
    checkpoint.save(tmp_path, target, mtp, tokenizer=tokenizer)
    for file in FILES.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_tensors_carry_released_names_and_fit_in_8_mb() -> None:
    assert "model.layers.3.mlp.experts.15.down_proj.weight" in names_in(FILES / "model.safetensors")
    mtp = names_in(FILES / "mtp.safetensors")
    assert {"mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.gate.weight"} <= mtp
    assert sum(file.stat().st_size for file in FILES.iterdir()) < 8_000_000


def test_a_tensor_without_a_place_is_refused() -> None:
    target, _, _ = checkpoint.load(FILES, torch.device("cpu"))
    tensors = dict(checkpoint.released(target, "model."))
    with pytest.raises(ValueError, match="model.surplus"):
        checkpoint.fill(target, "model.", tensors | {"model.surplus": torch.zeros(1)})


def test_stop_tokens_are_both_ends() -> None:
    tokenizer = Tokenizer.from_file(str(FILES / "tokenizer.json"))
    settings = json.loads((FILES / "generation_config.json").read_text())
    stops = [tokenizer.id_to_token(i) for i in settings["eos_token_id"]]
    assert stops == ["<|im_end|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def chat() -> AutoTokenizer:
    return AutoTokenizer.from_pretrained(FILES)


def render(chat: AutoTokenizer, messages: list[dict], **options: object) -> str:
    return chat.apply_chat_template(messages, tokenize=False, **options)


def test_only_answers_after_the_last_question_keep_their_thought(chat: AutoTokenizer) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nHello"},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Bye", "reasoning_content": "new"},
    ]
    assert render(chat, messages) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nnew\n</think>\n\nBye<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("thinking", "tail"), [(True, "assistant\n"), (False, "<think>\n\n</think>\n\n")]
)
def test_thinking_is_switched_off_by_an_empty_thought(
    chat: AutoTokenizer, thinking: bool, tail: str
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = render(chat, messages, add_generation_prompt=True, enable_thinking=thinking)
    assert text.endswith(tail)


def test_tool_calls_and_their_results(chat: AutoTokenizer) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]
    text = render(chat, messages, tools=[TOOL])
    assert text.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n")
    assert text.count("<|im_start|>system") == 1
    called = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert f"</think>\n\n{called}\n{called}<|im_end|>\n" in text
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>"
        "\n<tool_response>\n2\n</tool_response><|im_end|>\n"
    )
