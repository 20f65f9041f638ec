"""``headrace bench``: measurements as commands, each beside what it is to be compared with."""

from __future__ import annotations

import typer

from headrace.cli import (
    bench_attention,
    bench_device,
    bench_kernels,
    bench_serve,
    bench_transfer,
)

app = typer.Typer(help="Measure, beside what it is to be compared with.")
app.command("transfer")(bench_transfer.transfer)
app.command("serve")(bench_serve.serve)
app.command("decode")(bench_device.decode)
app.command("prefill")(bench_device.prefill)
app.command("kernels")(bench_kernels.kernels)
app.command("attention")(bench_attention.attention)
