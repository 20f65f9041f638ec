"""What a model argument means: which folder is read here, and what ranks are told to open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import CheckpointError
from headrace.deployment import DeploymentConfig
from headrace.models.checkpoint.folder import read_config, read_json, read_weight_files
from headrace.models.config import ModelConfig
from headrace.models.embedded import embedded_folder
from headrace.serving.openai.config import SamplingDefaults, ServedModel

EMBEDDED = "tiny"
REPLAY = "replay:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model argument, resolved.

    Attributes:
        name: Name that clients use unless the operator chose another.
        launch: What ranks open: an absolute folder, or ``replay:`` and an absolute file.
        folder: Where config, tokenizer and chat template lie.
        config: The model's config.
    """

    name: str
    launch: str
    folder: Path
    config: ModelConfig

    @property
    def is_moe(self) -> bool:
        """Whether the model has experts."""
        return self.config.num_experts > 0


def resolve_model(model: str) -> ModelSource:
    """Find a model and read its config; nothing else is read.

    Args:
        model: A folder, ``tiny``, or ``replay:FILE``, which plays a script of tokens in the
            shape, and with the tokenizer, of the embedded model.

    Raises:
        CheckpointError: No such folder or file, or a config that this build cannot serve.
    """
    if model.startswith(REPLAY):
        script = Path(model.removeprefix(REPLAY)).absolute()
        if not script.is_file():
            raise CheckpointError(f"{script}: no such file; expected JSON lines of token ids")
        return _source(REPLAY.rstrip(":"), f"{REPLAY}{script}", embedded_folder())
    if model == EMBEDDED:
        return _source(EMBEDDED, str(embedded_folder()), embedded_folder())
    folder = Path(model).absolute()
    if not folder.is_dir():
        raise CheckpointError(
            f"{model}: no such folder; expected a model folder, 'tiny' (the embedded model) or "
            f"'replay:FILE'"
        )
    return _source(folder.name, str(folder), folder)


def _source(name: str, launch: str, folder: Path) -> ModelSource:
    return ModelSource(name=name, launch=launch, folder=folder, config=read_config(folder))


def check_files(source: ModelSource) -> None:
    """Refuse absent, cut or mismatched weight files by their headers, before ranks are started.

    Ranks check more, and every rank again: this one answers at once, and only once.

    Raises:
        CheckpointError: The first fault found.
    """
    if not source.launch.startswith(REPLAY):
        read_weight_files(source.folder)


def served_model(source: ModelSource, config: DeploymentConfig) -> ServedModel:
    """Return what the HTTP front must know of the model.

    Raises:
        CheckpointError: A damaged ``generation_config.json``, or an impossible value in it.
    """
    generation = source.folder / "generation_config.json"
    limit = config.engine.max_model_tokens
    positions = source.config.max_positions
    return ServedModel(
        name=config.serving.model_name or source.name,
        vocab_size=source.config.vocab_size,
        created_s=int((source.folder / "config.json").stat().st_mtime),
        max_model_tokens=min(limit, positions) if limit else positions,
        max_sequences=config.engine.max_sequences,
        defaults=SamplingDefaults.from_generation_config(
            read_json(generation) if generation.exists() else {}
        ),
    )
