"""One decoder layer at a time in the reference library, filled from the files by its own rules.

The library's own conversion decides what a tensor of the files means, and its own reader reads it,
so a name or a layout that this package misunderstands shows as a difference. ``transformers`` is
imported when asked for and never needed to serve.

Shape letters: T = tokens   H = hidden width   V = rows of the vocabulary
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from headrace.core.errors import CheckpointError, ConfigError
from headrace.models.checkpoint.headers import TensorHeader

_LAYER = re.compile(r"layers\.\d+\.")


class ReferenceLibrary:
    """Made by ``open_reference``. Holds at most one layer; one thread at a time."""

    def __init__(self, library: ModuleType, config: Any, final_norm: TensorHeader) -> None:
        self._library = library
        self._config = config
        self._final_norm = final_norm

    def run_layer(self, x_TH: Tensor, headers: Iterable[TensorHeader], *, is_moe: bool) -> Tensor:
        """Run one layer over a sequence from position 0.

        Args:
            x_TH: fp32 residual stream. Not modified.
            headers: All tensors of the layer, as the files name them.
            is_moe: Whether it has routed experts.

        Returns:
            fp32 residual stream after the layer.

        Raises:
            CheckpointError: The library misses a tensor of the layer or has no use for one.
        """
        tensors = {_as_first_layer(header.name): read_tensor(header) for header in headers}
        model = self._decoder(tensors, num_layers=1, is_moe=is_moe)
        num_tokens = len(x_TH)
        mask = torch.full((num_tokens, num_tokens), torch.finfo(torch.float32).min).triu(1)
        positions = torch.arange(num_tokens)[None]
        with torch.inference_mode():
            out = model.layers[0](
                x_TH[None],
                attention_mask=mask[None, None],
                position_ids=positions,
                position_embeddings=model.rotary_emb(x_TH[None], positions),
            )
        # Older versions of the library return the stream in a tuple.
        return (out[0] if isinstance(out, tuple) else out).view_as(x_TH)

    def norm(self, x_TH: Tensor) -> Tensor:
        """Apply the final norm."""
        with torch.inference_mode():
            return self._decoder({}, num_layers=0, is_moe=False).norm(x_TH)

    def _decoder(self, tensors: dict[str, Tensor], *, num_layers: int, is_moe: bool) -> Any:
        config = copy.deepcopy(self._config)
        config.num_hidden_layers, config.vocab_size = num_layers, 1
        config.tie_word_embeddings = False
        config.bos_token_id = config.eos_token_id = config.pad_token_id = None
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:num_layers]
        if hasattr(config, "mlp_only_layers"):
            config.decoder_sparse_step = 1
            config.mlp_only_layers = [] if is_moe else [0]
        one_row = torch.zeros(1, config.hidden_size)
        tensors |= {
            "model.embed_tokens.weight": one_row,
            "lm_head.weight": one_row.clone(),
            "model.norm.weight": read_tensor(self._final_norm),
        }
        return self._load(config, tensors).model

    def _load(self, config: Any, tensors: dict[str, Tensor]) -> Any:
        kind = self._library.AutoModelForCausalLM._model_mapping[type(config)]
        with _no_progress_bar(self._library):
            model, info = kind.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info[fault]:
                raise CheckpointError(
                    f"{self._final_norm.path.parent}: transformers reports {fault} in a layer: "
                    f"{sorted(map(str, info[fault]))[0]}: expected the layer's tensors to fit"
                )
        return model.eval()


def open_reference(folder: Path, *, final_norm: TensorHeader) -> ReferenceLibrary:
    """Read a folder's config with the reference library.

    Args:
        folder: Model folder.
        final_norm: The file's tensor of the norm before the head.

    Raises:
        ConfigError: The library is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            "comparing against transformers: the package is not installed; "
            "pip install 'transformers>=5'"
        ) from error
    config = transformers.AutoConfig.from_pretrained(folder)
    return ReferenceLibrary(transformers, config, final_norm)


@contextmanager
def _no_progress_bar(library: ModuleType) -> Iterator[None]:
    logging = library.utils.logging
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def read_tensor(header: TensorHeader) -> Tensor:
    """Read a whole tensor with the format's own library, as fp32."""
    with safe_open(str(header.path), "pt") as file:
        return file.get_tensor(header.name).float()


def read_rows(header: TensorHeader, rows: slice) -> Tensor:
    """Read some rows of a tensor with the format's own library, as fp32."""
    with safe_open(str(header.path), "pt") as file:
        return file.get_slice(header.name)[rows].float()


def head_logits(normed_TH: Tensor, head: TensorHeader, rows: slice) -> Tensor:
    """Return fp32 logits ``[T, V]`` of some rows of the vocabulary."""
    return F.linear(normed_TH, read_rows(head, rows))


def _as_first_layer(name: str) -> str:
    # Whatever stands before it is a prefix of the release: the library's own is "model.".
    return "model.layers.0." + _LAYER.split(name, maxsplit=1)[-1]
