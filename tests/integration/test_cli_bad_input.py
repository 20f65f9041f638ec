"""What a person can mend is one line on standard error, exit code 2, and nothing left running."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints import TinyModel, write_checkpoint, write_json
from tests.support.cli_model import write_model
from tests.support.cli_process import headrace, private_temporary_folder, traces


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that can be served."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, TinyModel(num_layers=1), tokenizer=True)
    return folder


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with private_temporary_folder(monkeypatch) as folder:
        yield folder


def refused(*args: str) -> str:
    """Run a command that must be refused, and return its one line."""
    ended = headrace(*args)
    assert ended.returncode == 2, ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("headrace: "), ended.stderr
    return ended.stderr


def test_a_busy_port(checkpoint: Path, temporary: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in refused(
            "serve", str(checkpoint), "--port", port
        )
    assert traces(temporary) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["serve", "/absent"], "/absent: no such folder; expected a model folder"),
        (["serve", "--config", "/absent.toml"], "/absent.toml: no such file"),
        (["serve", "--set", "engine.blok_size=16"], "did you mean 'block_size'"),
        (["serve", "--prefil", "tp=2"], "No such option: --prefil"),
        (["chat", "--url", "http://127.0.0.1:9"], "nobody answers at http://127.0.0.1:9"),
    ],
)
def test_a_flag_or_a_name(args: list[str], message: str, temporary: Path) -> None:
    assert message in refused(*args)
    assert traces(temporary) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prefill", "tp=3", "--decode", "dp=2"], "prefill tp=3 does not divide"),
        (["--prefill", "tp=1", "--decode", "tp=2"], "decode tp=2"),
        (["--mono", "dp=3"], "mono ep=3 does not divide the model's 8 experts"),
    ],
)
def test_a_sharding_that_cannot_be(
    checkpoint: Path, flags: list[str], message: str, temporary: Path
) -> None:
    assert message in refused("serve", str(checkpoint), "--port", "0", *flags)
    assert traces(temporary) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architecture 'LlamaForCausalLM'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized (fp8)"),
    ],
    ids=["architecture", "quantized"],
)
def test_a_config_that_this_build_cannot_serve(
    fields: dict, message: str, tmp_path: Path, temporary: Path
) -> None:
    folder = str(write_model(tmp_path / "model", **fields))
    assert message in refused("serve", folder, "--port", "0")
    assert traces(temporary) == []


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def name_absent_files(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    write_json(
        folder / "model.safetensors.index.json",
        {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}},
    )


def widen_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "moe_intermediate_size": 128})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut_weights, "the file is cut short"),
        (name_absent_files, "which is not in the folder"),
        # Only a rank finds this one.
        (widen_config, "mlp.experts"),
    ],
)
def test_weights_that_do_not_fit(spoil, message: str, tmp_path: Path, temporary: Path) -> None:
    folder = tmp_path / "model"
    write_checkpoint(folder, TinyModel(num_layers=1), tokenizer=True)
    spoil(folder)
    roles = ["--prefill", "tp=1", "--decode", "dp=1"]
    assert message in refused("serve", str(folder), "--port", "0", *roles)
    assert traces(temporary) == []
