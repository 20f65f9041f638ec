"""``headrace demo``: one chat with the embedded model, prefill and decode apart, and its ledger."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headrace.cli.ledger import ledger_table
from headrace.cli.logs import log_to_stderr
from headrace.cli.memory import total_pss_bytes
from headrace.cli.progress import StartReport
from headrace.cli.signals import run_until_signal
from headrace.cli.source import EMBEDDED, ModelSource, resolve_model
from headrace.core.launch import EngineConfig
from headrace.deployment import (
    DeploymentConfig,
    ReplicaConfig,
    describe_shardings,
    num_ranks,
)
from headrace.serving.openai.config import ServingConfig

if TYPE_CHECKING:
    from headrace.cli.client import Answer
    from headrace.cli.server import RunningServer

PROMPT = "Tell me a story about a little fox."

Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="What to say to the model.")]
MaxTokens = Annotated[int, typer.Option(metavar="TOKENS", min=1, max=8000, help="Longest answer.")]
Seed = Annotated[int, typer.Option(metavar="NUMBER", help="Another seed, another answer.")]


def demo(prompt: Prompt = PROMPT, max_tokens: MaxTokens = 160, seed: Seed = 1) -> None:
    """Answer one chat with prefill and decode apart, then show where its time and bytes went.

    Four rank processes and a server run on this machine: the prompt is computed by a prefill
    replica of two ranks (tp=2,ep=2), the answer by a decode replica of two (dp=2,ep=2).
    Everything is stopped at the end.

    Example: headrace demo "Once upon a time"
    """
    log_to_stderr("warning")
    fields = {
        "max_tokens": max_tokens,
        "seed": seed,
        "return_ledger": True,
        # The answer is shown as it comes: an empty thought in front would only be in the way.
        "chat_template_kwargs": {"enable_thinking": False},
    }
    run_until_signal(_demo(demo_deployment(), resolve_model(EMBEDDED), prompt, fields=fields))


def demo_deployment() -> DeploymentConfig:
    """Return the demo's deployment, on a free port."""
    return DeploymentConfig(
        model=EMBEDDED,
        prefill=ReplicaConfig(tp=2, ep=2),
        decode=ReplicaConfig(dp=2, ep=2),
        # A chat needs little KV, and the pool is taken from shared memory at once.
        engine=EngineConfig(kv_cache_mib=32),
        serving=ServingConfig(port=0),
    )


async def _demo(
    config: DeploymentConfig, source: ModelSource, prompt: str, *, fields: dict[str, Any]
) -> None:
    from headrace.cli.server import running_server

    console, started_s = Console(highlight=False), time.monotonic()
    console.print(f"starting {describe_shardings(config, source.config)}", soft_wrap=True)
    report = StartReport(console, num_ranks=num_ranks(config, source.config))
    with report:
        async with running_server(config, source, on_event=report.on_event) as server:
            report.close()
            took_s = time.monotonic() - started_s
            console.print(f"serving at {server.url}/v1 after {took_s:.1f} s", soft_wrap=True)
            answer = await server.cluster.guard(_ask(server, prompt, fields))
            _show(console, answer, server)


async def _ask(server: RunningServer, prompt: str, fields: dict[str, Any]) -> Answer:
    from headrace.cli.client import ChatSettings, chat_client

    typer.echo(f"\nyou: {prompt}\n{server.model_name}: ", nl=False)
    settings = ChatSettings(model=server.model_name, fields=fields)
    messages = [{"role": "user", "content": prompt}]
    async with chat_client(server.url) as client:
        answer = await client.stream(messages, settings, on_text=_show_text)
    typer.echo("\n")
    return answer


def _show_text(text: str) -> None:
    typer.echo(text, nl=False)


def _show(console: Console, answer: Answer, server: RunningServer) -> None:
    if answer.ledger is not None:
        console.print(ledger_table(answer.ledger))
    pids = [os.getpid(), *server.cluster.pids.values()]
    gib = total_pss_bytes(pids) / (1 << 30)
    console.print(f"\n{len(pids)} processes took {gib:.2f} GiB together (PSS)", soft_wrap=True)
