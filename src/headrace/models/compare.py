"""``verify DIR --against transformers``: is a checkpoint read and computed right, layer by layer.

Each layer is loaded alone, first here and then in the reference library, in fp32, so that a
checkpoint of any size is compared in the memory of one of its layers. Two streams run through our
layers side by side: one is fed the reference's own hidden states, which isolates every layer; the
other goes on by itself, which shows what is left at the end.

Shape letters: T = tokens   H = hidden width   V = rows of the vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from headrace.core.errors import ConfigError
from headrace.core.sharding import Role, Sharding
from headrace.models.checkpoint.headers import TensorHeader
from headrace.models.checkpoint.load import Checkpoint, open_checkpoint
from headrace.models.checkpoint.match import EMBEDDING, HEAD
from headrace.models.common.decoder import Decoder
from headrace.models.config import ModelConfig
from headrace.models.forward_batch import ForwardBatch, SequenceChunk, build_forward_batch
from headrace.models.qwen3_moe.model import load_qwen3_moe
from headrace.models.reference_library import (
    ReferenceLibrary,
    head_logits,
    open_reference,
    read_rows,
)
from headrace.models.setup import ModelSetup
from headrace.models.shard import shard_of
from headrace.models.slices import ParameterSpec, weight_slices

MAX_RELATIVE_GAP = 1e-3
_BLOCK_SIZE = 16
_HEAD_ROWS = 16384  # rows of the head read at once: 256 MiB at a hidden width of 4096
_NORM = "model.norm.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """How far one stage is from the reference, over all tokens of the prompt.

    Attributes:
        stage: ``embedding``, ``layer N`` or ``head``.
        max_abs: Largest difference of an element.
        max_rel: Largest over tokens of (largest difference) / (largest element that the stage
            added to the token's stream; of the head: largest logit).
        num_off: Tokens whose relative difference is over ``MAX_RELATIVE_GAP``.
        num_allowed: Tokens that may be off: in a layer with experts, a few near-ties of the
            gate's scores fall either way.
    """

    stage: str
    max_abs: float
    max_rel: float
    num_off: int
    num_allowed: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether the stage computes the same."""
        return self.num_off <= self.num_allowed

    def format(self) -> str:
        """Return one line."""
        verdict = "equal" if self.is_equal else f"DIFFERENT in {self.num_off} tokens"
        if self.is_equal and self.num_off:
            verdict = f"equal but for {self.num_off} tokens at a tie of the gate"
        return f"{self.stage:<10} max abs {self.max_abs:.1e}  rel {self.max_rel:.1e}  {verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """A whole comparison.

    Attributes:
        gaps: Every stage, each fed the reference's input.
        num_tokens: Tokens of the prompt.
        max_logit_gap: Largest difference of a logit between the two whole models.
        num_top1_equal: Positions at which both whole models prefer the same token.
    """

    gaps: tuple[Gap, ...]
    num_tokens: int
    max_logit_gap: float
    num_top1_equal: int

    @property
    def is_equal(self) -> bool:
        """Whether every stage computes the same."""
        return all(gap.is_equal for gap in self.gaps)

    def format(self) -> str:
        """Return the report as lines."""
        return "\n".join([*(gap.format() for gap in self.gaps), self.summary()])

    def summary(self) -> str:
        """Return the worst stage, the gap of the whole models, and the verdict."""
        worst = max(self.gaps, key=lambda gap: gap.max_rel)
        wrong = next((gap for gap in self.gaps if not gap.is_equal), None)
        verdict = f"DIFFERENT from {wrong.stage} on" if wrong else "EQUAL in every stage"
        return (
            f"worst stage: {worst.stage}; whole models: logits differ by at most "
            f"{self.max_logit_gap:.1e}, top-1 equal at {self.num_top1_equal} of "
            f"{self.num_tokens} positions\n{verdict}"
        )


def compare_with_transformers(
    folder: Path,
    token_ids: Sequence[int],
    *,
    on_stage: Callable[[Gap], None] | None = None,
) -> CompareReport:
    """Compare a checkpoint with the reference library, stage by stage.

    Args:
        folder: Model folder.
        token_ids: A prompt; a few dozen tokens are enough.
        on_stage: Called with each stage's gap as soon as it is known.

    Raises:
        CheckpointError: The folder is not as its config promises.
        ConfigError: The library is missing, or the prompt is empty or has unknown tokens.

    Cost:
        Reads the weights twice. Memory: one layer in fp32, about three times over.
    """
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    if not token_ids or not all(0 <= token < config.vocab_size for token in token_ids):
        raise ConfigError(
            f"a prompt of {len(token_ids)} tokens: expected at least one, all under "
            f"{config.vocab_size}"
        )
    ours = _Ours(checkpoint, num_tokens=len(token_ids))
    reference = open_reference(folder, final_norm=ours.header(_NORM))
    gaps: list[Gap] = []

    def add(gap: Gap) -> None:
        gaps.append(gap)
        if on_stage is not None:
            on_stage(gap)

    theirs_TH = torch.cat(
        [read_rows(ours.header(EMBEDDING), slice(token, token + 1)) for token in token_ids]
    )
    own_TH = ours.embed(token_ids)
    add(_gap("embedding", own_TH, theirs_TH, scale=theirs_TH))
    for layer in range(config.num_layers):
        is_moe = config.is_moe_layer(layer)
        fed_TH, own_TH = ours.run_layer(layer, theirs_TH, own_TH)
        after_TH = reference.run_layer(theirs_TH, ours.headers(layer), is_moe=is_moe)
        allowed = max(1, len(token_ids) // 32) if is_moe else 0
        added_TH = after_TH - theirs_TH
        add(_gap(f"layer {layer}", fed_TH, after_TH, scale=added_TH, num_allowed=allowed))
        theirs_TH = after_TH
    head = _compare_heads(ours, reference, theirs_TH=theirs_TH, own_TH=own_TH)
    add(head.gap)
    return CompareReport(
        gaps=tuple(gaps),
        num_tokens=len(token_ids),
        max_logit_gap=head.max_logit_gap,
        num_top1_equal=head.num_top1_equal,
    )


class _Ours:
    """Our model, one stage in memory at a time."""

    def __init__(self, checkpoint: Checkpoint, *, num_tokens: int) -> None:
        self.checkpoint = checkpoint
        self.num_tokens = num_tokens
        config = checkpoint.config
        specs = weight_slices(config, Sharding(), Role.MONO, rank=0)
        self.specs = {spec.name: spec for spec in specs}
        self.head_name = EMBEDDING if config.tie_word_embeddings else HEAD

    def header(self, name: str) -> TensorHeader:
        """Return the file's tensor of an undivided parameter."""
        (source,) = self.checkpoint.matched.sources[name]
        return source.header

    def headers(self, layer: int) -> list[TensorHeader]:
        """Return all tensors of a layer as the files have them."""
        names = [name for name in self.specs if name.startswith(f"model.layers.{layer}.")]
        return [s.header for name in names for s in self.checkpoint.matched.sources[name]]

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """Read the rows of some tokens."""
        rows = tuple((token, token + 1) for token in token_ids)
        return self._read(
            ParameterSpec(name=EMBEDDING, shape=self.specs[EMBEDDING].shape, slices=((0, rows),))
        )

    def run_layer(self, layer: int, *streams_TH: Tensor) -> list[Tensor]:
        """Run one layer over several streams as sequences of one batch."""
        prefix = f"model.layers.{layer}."
        tensors = {
            name.replace(prefix, "model.layers.0."): self._read(spec)
            for name, spec in self.specs.items()
            if name.startswith(prefix)
        }
        is_moe = self.checkpoint.config.is_moe_layer(layer)
        decoder = self._decoder(
            tensors, num_layers=1, dense_layers=() if is_moe else (0,), head_rows=slice(0)
        )
        batch, cache = self._step(decoder, len(streams_TH))
        out_TH = decoder.run_layer(0, torch.cat(streams_TH), batch=batch, cache=cache)
        return list(out_TH.split(self.num_tokens))

    def logits(self, x_TH: Tensor, rows: slice) -> Tensor:
        """Return logits of some rows of the vocabulary."""
        decoder = self._decoder({}, num_layers=0, dense_layers=(), head_rows=rows)
        return decoder.logits(x_TH)

    def _decoder(
        self,
        tensors: dict[str, Tensor],
        *,
        num_layers: int,
        dense_layers: tuple[int, ...],
        head_rows: slice,
    ) -> Decoder:
        config: ModelConfig = msgspec.structs.replace(
            self.checkpoint.config,
            num_layers=num_layers,
            dense_layers=dense_layers,
            tie_word_embeddings=False,
        )
        shape = self.specs[self.head_name].shape
        runs = ((head_rows.start or 0, min(head_rows.stop, shape[0])),)
        head = ParameterSpec(name=self.head_name, shape=shape, slices=((0, runs),))
        tensors |= {
            EMBEDDING: torch.empty(0, config.hidden_size),
            HEAD: self._read(head),
            _NORM: self._read(self.specs[_NORM]),
        }
        setup = ModelSetup(
            config=config,
            shard=shard_of(config, Sharding(), Role.MONO, rank=0),
            dtype=torch.float32,
            num_positions=self.num_tokens,
        )
        # The MoE loader takes dense layers as well, which is all that a dense model has.
        return load_qwen3_moe(tensors, setup)

    def _step(self, decoder: Decoder, num_streams: int) -> tuple[ForwardBatch, Tensor]:
        shape = decoder.attention_shape(_BLOCK_SIZE)
        num_blocks = -(-self.num_tokens // _BLOCK_SIZE)
        chunks = [
            SequenceChunk(
                token_ids=[0] * self.num_tokens,
                start=0,
                block_ids=range(stream * num_blocks, (stream + 1) * num_blocks),
            )
            for stream in range(num_streams)
        ]
        pool = (2, shape.num_kv_heads, num_streams * num_blocks, _BLOCK_SIZE, shape.head_dim)
        return build_forward_batch(chunks, shape), torch.zeros(pool)

    def _read(self, spec: ParameterSpec) -> Tensor:
        return self.checkpoint.read(spec, dtype=torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeadResult:
    gap: Gap
    max_logit_gap: float
    num_top1_equal: int


def _compare_heads(
    ours: _Ours, reference: ReferenceLibrary, *, theirs_TH: Tensor, own_TH: Tensor
) -> _HeadResult:
    normed_TH = reference.norm(theirs_TH)
    num_tokens, vocab_size = ours.num_tokens, ours.specs[ours.head_name].shape[0]
    fed, theirs, own = [], [], []
    for start in range(0, vocab_size, _HEAD_ROWS):
        rows = slice(start, min(start + _HEAD_ROWS, vocab_size))
        both_TV = ours.logits(torch.cat([theirs_TH, own_TH]), rows)
        fed.append(both_TV[:num_tokens])
        own.append(both_TV[num_tokens:])
        theirs.append(head_logits(normed_TH, ours.header(ours.head_name), rows))
    fed_TV, own_TV, theirs_TV = torch.cat(fed, 1), torch.cat(own, 1), torch.cat(theirs, 1)
    return _HeadResult(
        gap=_gap("head", fed_TV, theirs_TV, scale=theirs_TV),
        max_logit_gap=float((own_TV - theirs_TV).abs().max()),
        num_top1_equal=int((own_TV.argmax(1) == theirs_TV.argmax(1)).sum()),
    )


def _gap(
    stage: str, ours_TN: Tensor, theirs_TN: Tensor, *, scale: Tensor, num_allowed: int = 0
) -> Gap:
    abs_T = (ours_TN - theirs_TN).abs().amax(dim=-1)
    rel_T = abs_T / scale.abs().amax(dim=-1).clamp(min=1e-30)
    # NaN on either side must count as off, which no comparison with it does.
    num_off = int((~(rel_T <= MAX_RELATIVE_GAP)).sum())
    return Gap(
        stage=stage,
        max_abs=float(abs_T.max()),
        max_rel=float(rel_T.max()),
        num_off=num_off,
        num_allowed=num_allowed,
    )
