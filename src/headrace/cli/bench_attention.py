"""``headrace bench attention``: paged attention beside its floor and FlashAttention 4."""

from __future__ import annotations

from headrace.cli import bench_families as flags

FAMILIES = ("decode_attention", "prefill_attention")


def attention(
    matching: flags.Matching = "",
    device: flags.Device = "cuda:0",
    replays: flags.Replays = 100,
    json: flags.Json = None,
    png: flags.Png = None,
) -> None:
    """Time paged attention of decode and prefill, beside FlashAttention 4 where it is installed.

    Example: headrace bench attention --case 64x4096
    """
    flags.measure_families(
        "attention",
        FAMILIES,
        device=device,
        matching=matching,
        replays=replays,
        json=json,
        png=png,
    )
