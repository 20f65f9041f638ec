"""``headrace transfer explain``: the plan by which KV moves between two shardings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from headrace.cli.source import EMBEDDED, resolve_model
from headrace.core.errors import ConfigError, IllegalPlanError
from headrace.core.layouts import KV_TILE_TOKENS, MODEL_ITEM_BYTES, CacheLayout, KvSchema
from headrace.core.sharding import split_range
from headrace.deployment import parse_sharding
from headrace.transfer.explain import explain_plan
from headrace.transfer.plan import TransferPlan, plan_transfer
from headrace.transfer.svg import draw_plan

app = typer.Typer(help="Look at how KV moves from prefillers to decoders.")

Ints = np.ndarray[Any, np.dtype[np.int64]]

Model = Annotated[
    str,
    typer.Option(
        metavar="DIR|tiny",
        help="Take the KV's shape from a model (default: tiny).",
        show_default=False,
    ),
]
KvHeads = Annotated[
    int, typer.Option(metavar="HEADS", help="KV heads of the model.", show_default=False)
]
HeadDim = Annotated[int, typer.Option(metavar="WIDTH", help="Width of a head.", show_default=False)]
Layers = Annotated[
    int, typer.Option(metavar="LAYERS", help="Layers of the model.", show_default=False)
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Element type of the KV: bfloat16, float16 or float32.",
        show_default=False,
    ),
]
Prefill = Annotated[str, typer.Option(metavar="SIZES", help="Prefill replica, e.g. tp=4.")]
Decode = Annotated[
    str,
    typer.Option(
        metavar="SIZES",
        help="Decode replica, e.g. dp=4. A request goes to one of its dp ranks; tp=2 splits that "
        "rank's heads (planned here, not yet served).",
    ),
]
# Far above any context; a plan's arrays grow with it.
MAX_TOKENS = 10_000_000

Tokens = Annotated[
    int,
    typer.Option(
        metavar="TOKENS",
        min=1,
        max=MAX_TOKENS,
        help="Prompt length; the last token is never sent.",
    ),
]
Start = Annotated[
    int, typer.Option(metavar="TOKENS", help="Tokens that the decoder has cached already.")
]
PrefillBlock = Annotated[
    int, typer.Option(metavar="TOKENS", help="Block size of the prefill replica.")
]
DecodeBlock = Annotated[
    int, typer.Option(metavar="TOKENS", help="Block size of the decode replica.")
]
Scatter = Annotated[
    int | None,
    typer.Option(
        metavar="SEED",
        help="Scatter the blocks over both pools, as after long use, by this seed.",
        show_default=False,
    ),
]
Transport = Annotated[str, typer.Option(metavar="NAME", help="Transport to name in the plan.")]
Svg = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also draw the plan here.", show_default=False),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a transfer.

    Attributes:
        name: Flag that described it.
        tp: Ranks that share the KV heads.
        block_size: Tokens of a block.
    """

    name: str
    tp: int
    block_size: int


@app.callback()
def transfer() -> None:
    """Look at how KV moves from prefillers to decoders."""


@app.command("explain")
def explain(
    model: Model = "",
    kv_heads: KvHeads = 0,
    head_dim: HeadDim = 0,
    layers: Layers = 0,
    dtype: Dtype = "",
    prefill: Prefill = "tp=2",
    decode: Decode = "dp=1",
    tokens: Tokens = 1000,
    start: Start = 0,
    prefill_block: PrefillBlock = 16,
    decode_block: DecodeBlock = 16,
    scatter: Scatter = None,
    transport: Transport = "shm",
    svg: Svg = None,
) -> None:
    """Print which bytes a prefill replica writes where, and prove that each is written once.

    It is the very plan that the engine runs. The model is given as a folder, or by its shape.

    Example: headrace transfer explain --kv-heads 4 --head-dim 128 --layers 94 --prefill tp=4
    --tokens 6000
    """
    schemas = _schemas(model, kv_heads=kv_heads, head_dim=head_dim, num_layers=layers, dtype=dtype)
    source = Side(name="prefill", tp=_tp(prefill, "prefill"), block_size=prefill_block)
    target = Side(name="decode", tp=_tp(decode, "decode"), block_size=decode_block)
    plan = plan_between(source, target, schemas, tokens=tokens, start=start, scatter=scatter)
    if svg is not None:
        _write(svg, draw_plan(plan, link=transport))
    typer.echo(explain_plan(plan, link=transport))


def plan_between(
    source: Side,
    target: Side,
    schemas: tuple[KvSchema, ...],
    *,
    tokens: int,
    start: int = 0,
    scatter: int | None = None,
) -> TransferPlan:
    """Plan a prompt's way from one side to the other.

    Args:
        source: The prefill replica.
        target: The decode ranks that hold the request.
        schemas: KV of each layer.
        tokens: Prompt length; its last token is computed by the decoder [tokens].
        start: Tokens that the decoder has already.
        scatter: Seed of scattered block ids; None gives each side one run of blocks.

    Raises:
        ConfigError: Sizes between which no plan exists.
    """
    if not 0 <= start < tokens:
        raise ConfigError(f"--start {start} with --tokens {tokens}: expected 0 <= start < tokens")
    blocks = [_blocks(side, tokens, scatter) for side in (source, target)]
    try:
        return plan_transfer(
            sources=_layouts(source, schemas, blocks[0]),
            targets=_layouts(target, schemas, blocks[1]),
            source_blocks=blocks[0],
            target_blocks=blocks[1],
            start=start,
            stop=tokens - 1,
        )
    except IllegalPlanError as error:
        raise ConfigError(str(error)) from error


def _schemas(
    model: str, *, kv_heads: int, head_dim: int, num_layers: int, dtype: str
) -> tuple[KvSchema, ...]:
    shape = {"--kv-heads": kv_heads, "--head-dim": head_dim, "--layers": num_layers}
    given = [flag for flag, size in shape.items() if size]
    if dtype and dtype not in MODEL_ITEM_BYTES:
        raise ConfigError(f"--dtype {dtype!r}: expected one of {', '.join(MODEL_ITEM_BYTES)}")
    if not given:
        return resolve_model(model or EMBEDDED).config.cache_schema(dtype)
    if model:
        raise ConfigError(f"{given[0]} beside --model: the model says its own shape")
    for flag, size in shape.items():
        if size < 1:
            raise ConfigError(f"{flag} is missing: give {', '.join(shape)} together, or --model")
    schema = KvSchema(num_kv_heads=kv_heads, head_dim=head_dim, dtype=dtype or "bfloat16")
    return (schema,) * num_layers


def _tp(text: str, name: str) -> int:
    sizes = parse_sharding(text, where=f"--{name}")
    tp = sizes.get("tp", 1)
    if tp < 1:
        raise ConfigError(f"--{name} tp={tp}: sizes start at 1")
    return tp


def _blocks(side: Side, tokens: int, scatter: int | None) -> Ints:
    if side.block_size < 1 or KV_TILE_TOKENS % side.block_size:
        raise ConfigError(
            f"--{side.name}-block {side.block_size}: expected a divisor of {KV_TILE_TOKENS}"
        )
    num_blocks = -(-tokens // side.block_size)
    if scatter is None:
        return np.arange(num_blocks, dtype=np.int64)
    draw = np.random.default_rng([scatter, side.block_size, len(side.name)])
    return draw.permutation(2 * num_blocks)[:num_blocks]


def _layouts(side: Side, schemas: tuple[KvSchema, ...], blocks: Ints) -> list[CacheLayout]:
    num_heads = schemas[0].num_kv_heads
    held = [split_range(num_heads, side.tp, rank) for rank in range(side.tp)]
    return [
        CacheLayout(
            layers=schemas,
            first_head=heads.start,
            num_heads=len(heads),
            num_blocks=int(blocks.max()) + 1,
            block_size=side.block_size,
        )
        for heads in held
    ]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--svg {path}: cannot be written: {error.strerror}") from error
