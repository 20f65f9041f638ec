"""``headrace verify``: does a deployment compute what one rank alone computes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from headrace.cli import options
from headrace.cli.logs import log_to_stderr
from headrace.cli.progress import StartReport
from headrace.cli.signals import run_until_signal
from headrace.cli.source import REPLAY, ModelSource, resolve_model, served_model
from headrace.cli.verify_compare import Run
from headrace.cli.verify_json import check_json_file, write_json
from headrace.cli.verify_prompts import Prompt, builtin_prompts, check_lengths, read_prompts
from headrace.cli.verify_reference import check_reference, verify_reference
from headrace.cli.verify_report import Report, ShowToken, compare_results
from headrace.cli.verify_run import Request, mono_of, run_side
from headrace.cli.verify_teacher import force
from headrace.core.errors import ConfigError
from headrace.core.requests import SamplingParams
from headrace.deployment import (
    DeploymentConfig,
    ReplicaConfig,
    check_shardings,
    describe_shardings,
    num_ranks,
)
from headrace.text.tokenizer import Tokenizer

_WHAT = "What is compared"
EXIT_DIFFERENT = 1
GREEDY, SEEDED = "greedy", "seeded"

Against = Annotated[
    str,
    typer.Option(
        metavar="LIBRARY",
        help="Compare the checkpoint with a reference library, layer by layer: transformers.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="One prompt per line, instead of the built-in ones.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
MaxTokens = Annotated[
    int, typer.Option(metavar="TOKENS", min=1, help="Output of each.", rich_help_panel=_WHAT)
]
Seed = Annotated[
    int, typer.Option(metavar="NUMBER", min=0, help="Of the sampled half.", rich_help_panel=_WHAT)
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the report there as well.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]


def verify(
    model: options.Model = "",
    against: Against = "",
    prompts: Prompts = None,
    max_tokens: MaxTokens = 32,
    seed: Seed = 1,
    json_file: Json = None,
    config: options.ConfigFile = None,
    prefill: options.Prefill = "",
    decode: options.Decode = "",
    mono: options.Mono = "",
    transport: options.Transport = "",
    key_file: options.KeyFile = "",
    device: options.Device = "",
    load_format: options.LoadFormat = "",
    dtype: options.Dtype = "",
    kv_dtype: options.KvDtype = "",
    exact: options.Exact = None,
    block_size: options.BlockSize = None,
    settings: options.Settings = None,
) -> None:
    """Run prompts through a deployment and through one rank alone, and compare all they compute.

    All prompts at once, first greedy, then sampled. Tokens, logits and KV must be equal bit for
    bit, and the ledger must show that prefill really was elsewhere. Exit code 1 names the first
    difference. Without flags: prefill tp=2, decode dp=2.

    With --device cuda bits cannot be equal: the engine's own tokens are run through plain torch,
    and its logits and tokens must lie within twice the noise of the dtype, measured in that run.

    Example: headrace verify ~/Qwen3-30B-A3B --prefill tp=4,ep=4 --decode dp=2,ep=2
    """
    log_to_stderr("warning")
    check_json_file(json_file)
    flags: dict[str, Any] = {
        "config": config,
        "prefill": prefill,
        "decode": decode,
        "mono": mono,
        "transport": transport,
        "key_file": key_file,
        "device": device,
        "load_format": load_format,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "exact": exact,
        "block_size": block_size,
        "settings": settings,
    }
    if against:
        check_reference(against)
        _refuse_flags(flags)
        source = resolve_model(model or "tiny")
        is_equal = verify_reference(source, prompts, json_file=json_file)
    else:
        resolved = with_default_roles(options.deployment_from_flags(model, **flags))
        plan = make_plan(resolved, prompts=prompts, max_tokens=max_tokens, seed=seed)
        is_forced = resolved.engine.device != "cpu"
        is_equal = run_until_signal((_verify_device if is_forced else _verify)(plan, json_file))
    if not is_equal:
        raise typer.Exit(EXIT_DIFFERENT)


def _refuse_flags(flags: dict[str, Any]) -> None:
    for name, value in flags.items():
        if value not in ("", None, []):
            raise ConfigError(
                f"--{name.replace('_', '-')} beside --against: that comparison starts no "
                f"deployment; leave one of the two out"
            )


def with_default_roles(config: DeploymentConfig) -> DeploymentConfig:
    """Return a deployment that has prefill apart where the user named no role."""
    # A device is one mono rank's.
    is_chosen = config.prefill is not None or config.mono is not None
    if is_chosen or config.engine.device != "cpu":
        return config
    return msgspec.structs.replace(config, prefill=ReplicaConfig(tp=2), decode=ReplicaConfig(dp=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is fixed before a rank is started. Made by ``make_plan``.

    Attributes:
        config: The deployment.
        source: Its model.
        tokenizer: The model's.
        prompts: What is asked.
        settings: How tokens are chosen, by name: one round of all prompts each.
    """

    config: DeploymentConfig
    source: ModelSource
    tokenizer: Tokenizer
    prompts: Sequence[Prompt]
    settings: dict[str, SamplingParams]

    @property
    def asked(self) -> list[tuple[str, int, str]]:
        """(prompt, its length in tokens, setting) per request, as the runs are ordered."""
        return [
            (prompt.text, len(prompt.token_ids), setting)
            for setting in self.settings
            for prompt in self.prompts
        ]

    @property
    def rounds(self) -> list[list[Request]]:
        """The requests: one round per setting."""
        return [
            [Request(prompt_ids=prompt.token_ids, params=params) for prompt in self.prompts]
            for params in self.settings.values()
        ]

    def report(self, *, expected: Sequence[Run], got: Sequence[Run]) -> Report:
        """Compare what mono (expected) and the deployment (got) computed."""
        config, engine = self.config, self.config.engine
        is_disaggregated = config.prefill is not None
        return Report(
            model=self.source.name,
            deployment=describe_shardings(config, self.source.config),
            dtype=engine.resolve_dtype(self.source.config.dtype),
            is_exact=engine.exact,
            is_disaggregated=is_disaggregated,
            block_size=decode_block_size(config),
            results=compare_results(
                self.asked, expected=expected, got=got, is_disaggregated=is_disaggregated
            ),
        )

    def show_token(self, token_id: int | None) -> str:
        """Return a token for people."""
        if token_id is None:
            return "nothing (ended)"
        text = self.tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")
        return f"{token_id} {text!r}"


def decode_block_size(config: DeploymentConfig) -> int:
    """Return the block size of the ranks that decode [tokens]."""
    _, replica = config.roles[-1]
    return replica.engine(config.engine).block_size


def make_plan(
    config: DeploymentConfig, *, prompts: Path | None, max_tokens: int, seed: int
) -> Plan:
    """Resolve the model, check the shardings, read and tokenize the prompts.

    Raises:
        UserError: Something that a person can mend; nothing was started.
    """
    source = resolve_model(config.model)
    if config.engine.device != "cpu" and source.launch.startswith(REPLAY):
        raise ConfigError("--device: a replay computes nothing that plain torch could check")
    check_shardings(config, source.config)
    tokenizer = Tokenizer.open(source.folder)
    room = served_model(source, config).max_model_tokens - max_tokens
    if room < 1:
        raise ConfigError(f"--max-tokens {max_tokens}: the model has no room for a prompt then")
    chosen = (
        builtin_prompts(tokenizer, block_size=decode_block_size(config), max_tokens=room)
        if prompts is None
        else read_prompts(prompts, tokenizer)
    )
    check_lengths(chosen, max_tokens=room)
    # EOS is ignored: how much is compared must not depend on what the model says.
    greedy = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    seeded = msgspec.structs.replace(greedy, temperature=1.0, top_p=0.95, seed=seed)
    return Plan(
        config=config,
        source=source,
        tokenizer=tokenizer,
        prompts=chosen,
        settings={GREEDY: greedy, SEEDED: seeded},
    )


async def _verify(plan: Plan, json_file: Path | None) -> bool:
    console = Console(highlight=False, markup=False)
    sharding = describe_shardings(plan.config, plan.source.config)
    title = f"{plan.source.name}: {sharding}, against mono"
    console.print(title, soft_wrap=True)
    # One after the other: a large model need not fit twice.
    got = await _run(plan, plan.config)
    expected = await _run(plan, mono_of(plan.config))
    report = plan.report(expected=expected, got=got)
    _print(console, report, plan.show_token)
    write_json(json_file, report.to_data(plan.show_token))
    return report.is_equal


async def _verify_device(plan: Plan, json_file: Path | None) -> bool:
    console = Console(highlight=False, markup=False)
    sharding = describe_shardings(plan.config, plan.source.config)
    title = f"{plan.source.name}: {sharding} on {plan.config.engine.device}, against plain torch"
    console.print(title, soft_wrap=True)
    runs = await _run(plan, plan.config)
    report = force(
        plan.config,
        plan.source,
        [request for requests in plan.rounds for request in requests],
        asked=plan.asked,
        runs=runs,
    )
    console.print(report.table())
    for line in [*report.findings(), report.verdict()]:
        console.print(line, soft_wrap=True)
    write_json(json_file, report.to_data())
    return report.is_equal


async def _run(plan: Plan, config: DeploymentConfig) -> list[Run]:
    console, started_s = Console(stderr=True, highlight=False, markup=False), time.monotonic()
    with StartReport(console, num_ranks=num_ranks(config, plan.source.config)) as starting:
        runs = await run_side(config, plan.source, plan.rounds, on_event=starting.on_event)
    took_s = time.monotonic() - started_s
    name = describe_shardings(config, plan.source.config)
    console.print(f"{name}: {len(runs)} requests done after {took_s:.1f} s", soft_wrap=True)
    return runs


def _print(console: Console, report: Report, show: ShowToken) -> None:
    console.print(report.table())
    for line in report.findings(show):
        console.print(line, soft_wrap=True)
    console.print(report.verdict(), soft_wrap=True, style="bold")
