"""The written folder is a released checkpoint: by name, by shape and to the reference library."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3MoeForCausalLM

from tests.support.tiny_trainer import DOCUMENTS, SIZES, networks, tokenizer, tokens
from tools.tiny import checkpoint, samples
from tools.tiny.network import Mtp, Target, TinyConfig

C, V = SIZES.hidden_size, SIZES.vocab_size
QUERY, KEY = SIZES.num_heads * SIZES.head_dim, SIZES.num_kv_heads * SIZES.head_dim
E, I = SIZES.num_experts, SIZES.expert_width  # noqa: E741  the network's own letters


def layer_shapes(prefix: str) -> dict[str, list[int]]:
    """Names and shapes of one decoder layer in released Qwen3-MoE checkpoints."""
    shapes = {
        "input_layernorm.weight": [C],
        "post_attention_layernorm.weight": [C],
        "self_attn.q_proj.weight": [QUERY, C],
        "self_attn.k_proj.weight": [KEY, C],
        "self_attn.v_proj.weight": [KEY, C],
        "self_attn.o_proj.weight": [C, QUERY],
        "self_attn.q_norm.weight": [SIZES.head_dim],
        "self_attn.k_norm.weight": [SIZES.head_dim],
        "mlp.gate.weight": [E, C],
    }
    for expert in range(E):
        shapes[f"mlp.experts.{expert}.gate_proj.weight"] = [I, C]
        shapes[f"mlp.experts.{expert}.up_proj.weight"] = [I, C]
        shapes[f"mlp.experts.{expert}.down_proj.weight"] = [C, I]
    return {prefix + name: shape for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "files"
    checkpoint.save(directory, *networks(), tokenizer=tokenizer())
    return directory


def load(folder: Path) -> tuple[Target, Mtp]:
    return checkpoint.load(folder, torch.device("cpu"))[:2]


def shapes_of(file: Path) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in load_file(file).items()}


def test_the_target_has_the_released_names_and_shapes(folder: Path) -> None:
    expected = {"model.embed_tokens.weight": [V, C], "model.norm.weight": [C]}
    for layer in range(SIZES.num_layers):
        expected |= layer_shapes(f"model.layers.{layer}.")
    assert shapes_of(folder / "model.safetensors") == expected


def test_the_mtp_layer_has_the_names_and_shapes_of_qwen3_next(folder: Path) -> None:
    expected = {
        "mtp.fc.weight": [C, 2 * C],
        "mtp.pre_fc_norm_embedding.weight": [C],
        "mtp.pre_fc_norm_hidden.weight": [C],
        "mtp.norm.weight": [C],
    }
    assert shapes_of(folder / "mtp.safetensors") == expected | layer_shapes("mtp.layers.0.")


@pytest.mark.parametrize("file", ["model.safetensors", "mtp.safetensors"])
def test_all_weights_are_bfloat16(folder: Path, file: str) -> None:
    assert {tensor.dtype for tensor in load_file(folder / file).values()} == {torch.bfloat16}


def test_what_was_written_is_read_back_rounded_to_bfloat16_only(folder: Path) -> None:
    for module, again in zip(networks(), load(folder), strict=True):
        assert again.config == SIZES
        state = again.state_dict()
        assert state.keys() == module.state_dict().keys()
        for name, value in module.state_dict().items():
            assert torch.equal(state[name], value.bfloat16().float()), name


def test_writing_over_an_older_folder_leaves_the_newer(folder: Path, tmp_path: Path) -> None:
    for seed in (1, 0):
        checkpoint.save(tmp_path, *networks(seed=seed), tokenizer=tokenizer())
    for file in folder.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


@torch.inference_mode()
def test_the_reference_library_computes_the_same_logits(folder: Path) -> None:
    reference, report = Qwen3MoeForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    target, _ = load(folder)
    ids = tokens(2, SIZES.max_positions)
    logits, expected = target.logits(target(ids)[0]), reference(ids).logits
    assert expected.std() > 0.5, "too even to tell a wrong network from a right one"
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_the_reference_library_reads_the_tokenizer_and_the_template(folder: Path) -> None:
    reference = AutoTokenizer.from_pretrained(folder)
    for text in (*DOCUMENTS, "e\u0301 <think>\nno\n</think>", "a<|im_end|>\n"):
        assert reference.encode(text) == tokenizer().encode(text).ids
    turn = [{"role": "user", "content": "Who are you?"}]
    rendered = reference.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert rendered == samples.question("Who are you?")


def test_both_closing_tokens_end_a_generation(folder: Path) -> None:
    stops = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert [tokenizer().id_to_token(i) for i in stops] == ["<|im_end|>", "<|endoftext|>"]


def test_a_tensor_without_a_place_is_refused_by_name() -> None:
    target, _ = networks()
    tensors = dict(checkpoint.released(target, "model.")) | {"lm_head.weight": torch.ones(1)}
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        checkpoint.fill(Target(SIZES), "model.", tensors)


def test_a_missing_tensor_is_refused_by_name() -> None:
    target, _ = networks()
    tensors = dict(checkpoint.released(target, "model."))
    del tensors["model.layers.1.mlp.experts.7.up_proj.weight"]
    with pytest.raises(KeyError, match=r"layers\.1\.mlp\.experts\.7\.up_proj"):
        checkpoint.fill(Target(SIZES), "model.", tensors)


def test_the_configuration_is_that_of_a_tied_qwen3_moe(folder: Path) -> None:
    written = json.loads((folder / "config.json").read_text())
    assert written["model_type"] == "qwen3_moe"
    assert written["architectures"] == ["Qwen3MoeForCausalLM"]
    assert written["tie_word_embeddings"] is True
    assert written["norm_topk_prob"] is True


def test_the_published_vocabulary_fits_the_type_that_token_ids_are_kept_in() -> None:
    assert TinyConfig().vocab_size <= 2**15, "corpus.encode keeps token ids as int16"
