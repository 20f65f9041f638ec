"""A model folder that the edge can read (config, tokenizer, template) and no engine can run."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import link, server
from headrace.cli.source import ModelSource, resolve_model
from headrace.cluster.local import SupervisorConfig
from headrace.cluster.replica import ReplicaBounds
from headrace.cluster.restarts import RestartConfig
from headrace.deployment import DeploymentConfig, ReplicaConfig
from headrace.serving.openai.config import ServingConfig
from tests.support.cli_rank import answering_command
from tests.support.text_tokenizers import tokenizer_json

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 261,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "max_position_embeddings": 1024,
    "eos_token_id": 258,
    "torch_dtype": "float32",
}
# The last message only, so that a stub that repeats its prompt says what it was told.
TEMPLATE = "{{ messages[-1].content }}"
ANSWERING = SupervisorConfig(
    command=answering_command(),
    start_timeout_s=60.0,
    replica=ReplicaBounds(restarts=RestartConfig(max_restarts=0)),
)


def write_model(folder: Path, **config: Any) -> Path:
    """Write a folder that ``serve`` accepts up to its weights; fields replace the config's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def model_source(folder: Path, **config: Any) -> ModelSource:
    """Return the source of a folder that is written here."""
    return resolve_model(str(write_model(folder, **config)))


def split_deployment(**serving: Any) -> DeploymentConfig:
    """Return a deployment of one prefill rank and two decode ranks on a free port."""
    return DeploymentConfig(
        prefill=ReplicaConfig(),
        decode=ReplicaConfig(dp=2),
        serving=ServingConfig(port=0, **serving),
    )


def answer_without_engine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have the commands of this process start ranks that repeat what they hear.

    Args:
        monkeypatch: Undoes it after the test.
        folder: Where a folder that stands for the embedded model is written.
    """
    real = server.running_server

    def running(config: DeploymentConfig, source: ModelSource, *, on_event: Any) -> Any:
        return real(config, source, on_event=on_event, supervision=ANSWERING)

    for room in (server, link):
        monkeypatch.setattr(room, "running_server", running)
    monkeypatch.setattr("headrace.cli.source.embedded_folder", lambda: write_model(folder))
    monkeypatch.setattr("headrace.cli.source.read_weight_files", lambda _folder: None)
