"""Tokens per second of one mono rank beside ``transformers``' generate, in one run.

A random Qwen3-MoE of 111M parameters in bf16 gets 64 prompt tokens and makes 64 new ones, greedily,
at several batch sizes; prefill is counted on both sides. Ours goes through scheduler, block pool,
sampler and detokenizer, in this process, with and without exact mode. Sides alternate, and the
median of the runs is printed: a table, or with ``--json`` one JSON object a row.

Run as ``python -m bench.vs_transformers [--threads N] [--runs N] [--batch 1,16,64] [--json]``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from headrace.comm.group import SingleGroup
from headrace.core.clock import SystemClock
from headrace.core.launch import EngineConfig, LaunchSpec
from headrace.core.messages import Message, Outputs, Submit
from headrace.core.requests import SamplingParams
from headrace.core.sharding import Role, Sharding
from headrace.engine.decode import DecodeRank
from headrace.engine.emitter import Emitter
from headrace.engine.load import load_backend
from headrace.engine.memory import make_layout
from headrace.engine.stepper import Stepper
from headrace.kvcache.pool import BlockPool
from headrace.scheduler.admission import Limits
from headrace.text.tokenizer import Tokenizer

PROMPT_TOKENS, NEW_TOKENS = 64, 64
MODEL = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
    "eos_token_id": 256,
    "bos_token_id": None,
    "pad_token_id": 256,
}
MAIN = "transformers"
EXACT = {"headrace": False, "headrace-exact": True}

# A batch of prompts to the output tokens of each.
Generate = Callable[[list[list[int]]], list[list[int]]]


def make_checkpoint(folder: Path) -> None:
    """Write the random model, in the form of a release, and a tokenizer of its vocabulary."""
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**MODEL))
    model.to(torch.bfloat16).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(left, right) for left in letters for right in letters]
    merges = pairs[: MODEL["vocab_size"] - len(letters) - 1]
    names = [*letters, *(left + right for left, right in merges)]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges)
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    (folder / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")


def load_transformers(folder: Path) -> Generate:
    """Return the library's own generate, with its default attention and experts."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.eval()

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=NEW_TOKENS,
                max_new_tokens=NEW_TOKENS,
            )
        return out[:, PROMPT_TOKENS:].tolist()

    return generate


class MonoRank:
    """One mono rank in this process: everything of a serving rank but its sockets.

    Args:
        folder: The checkpoint.
        exact: Exact mode.
    """

    def __init__(self, folder: Path, *, exact: bool, max_sequences: int) -> None:
        config = EngineConfig(exact=exact, max_sequences=max_sequences, prefix_cache=False)
        spec = LaunchSpec(
            deployment_id="bench",
            run_dir=str(folder),
            key="00" * 16,
            model=str(folder),
            replica="mono0",
            role=Role.MONO,
            sharding=Sharding(),
            rank=0,
            generation=1,
            ranks_on_host=1,
            supervisor="",
            engine=config,
        )
        loaded = load_backend(spec, SingleGroup(), lambda done, total: None)
        limit = loaded.max_model_tokens
        layout = make_layout(
            config, loaded.backend.schemas, heads=loaded.heads, max_model_tokens=limit
        )
        region = memoryview(bytearray(layout.num_bytes))
        loaded.backend.attach(region, num_blocks=layout.num_blocks, block_size=layout.block_size)
        self._outputs: dict[str, list[int]] = {}
        self._rank = DecodeRank(
            config=config,
            pool=BlockPool(layout.num_blocks, layout.block_size, prefix_cache=False),
            stepper=Stepper(loaded.backend),
            receiving=None,
            emitter=Emitter(
                rank=0,
                eos_token_ids=loaded.eos_token_ids,
                max_model_tokens=limit,
                send=self._keep,
            ),
            tokenizer=Tokenizer.open(folder),
            clock=SystemClock(),
            limits=Limits(
                max_model_tokens=limit,
                num_blocks=layout.num_blocks,
                block_size=layout.block_size,
                max_sequences=max_sequences,
            ),
        )

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        """Run a batch of requests to their ends."""
        self._outputs = {f"r{index}": [] for index in range(len(prompts))}
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        for request_id, prompt in zip(self._outputs, prompts, strict=True):
            submit = Submit(
                request_id=request_id, reply_to="edge", prompt_ids=prompt, params=params
            )
            self._rank.submit(submit)
        while self._rank.has_work:
            self._rank.advance()
            if self._rank.wants_step:
                self._rank.step()
        return list(self._outputs.values())

    def _keep(self, address: str, message: Message) -> bool:
        assert isinstance(message, Outputs)
        for output in message.outputs:
            self._outputs[output.request_id] += output.token_ids
        return True


@dataclass(frozen=True, kw_only=True)
class Result:
    """Rates of one batch size, one a run [tokens/s], and how far ours followed the main one."""

    batch: int
    rates: dict[str, list[float]]
    equal: dict[str, float]

    def median(self, variant: str) -> float:
        """Return the median rate [tokens/s]."""
        return statistics.median(self.rates[variant])


def measure(sides: dict[str, Generate], batch: int, *, runs: int) -> Result:
    """Let the sides take turns on the same prompts.

    Raises:
        SystemExit: A side made another number of tokens than asked for.
    """
    generator = torch.Generator().manual_seed(batch)
    shape = (batch, PROMPT_TOKENS)
    prompts: Tensor = torch.randint(257, MODEL["vocab_size"], shape, generator=generator)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    outputs: dict[str, list[list[int]]] = {}
    for run in range(runs + 1):
        for name, generate in sides.items():
            started_s = time.perf_counter()
            outputs[name] = generate(prompts.tolist())
            seconds = time.perf_counter() - started_s
            if [len(tokens) for tokens in outputs[name]] != [NEW_TOKENS] * batch:
                raise SystemExit(f"{name}: expected {batch} answers of {NEW_TOKENS} tokens")
            if run:  # the first warms up
                rates[name].append(batch * NEW_TOKENS / seconds)
    return Result(
        batch=batch,
        rates=rates,
        equal={name: _agreement(outputs[name], outputs[MAIN]) for name in sides},
    )


def _agreement(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """Return the share of the first tokens that are equal: later ones follow from them."""
    return statistics.mean(a[0] == b[0] for a, b in zip(ours, theirs, strict=True))


def rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield one JSON row a variant."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    for variant in result.rates:
        yield {
            "bench": "vs-transformers",
            "case": f"batch{result.batch}",
            "variant": variant,
            "value": round(result.median(variant), 1),
            "unit": "tokens/s",
            "runs": [round(rate, 1) for rate in result.rates[variant]],
            "baselines": {MAIN: round(result.median(MAIN), 1)},
            "ratio": round(result.median(variant) / result.median(MAIN), 3),
            "first_tokens_equal": round(result.equal[variant], 3),
            "threads": torch.get_num_threads(),
            "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            "versions": versions,
            "commit": _commit(),
        }


def _commit() -> str:
    command = ("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def table_line(result: Result) -> str:
    """Return one line of the table."""
    main = result.median(MAIN)
    cells = [
        f"{name} {result.median(name):7.0f} ({result.median(name) / main:.2f}x)"
        for name in result.rates
    ]
    cost = result.median("headrace") / result.median("headrace-exact")
    return f"batch {result.batch:3d}: {'   '.join(cells)}   exact costs {cost:.2f}x"


@contextmanager
def checkpoint() -> Iterator[Path]:
    """Make the model in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        make_checkpoint(Path(name))
        yield Path(name)


def main() -> None:
    """Measure every batch size and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batch", default="1,16,64")
    parser.add_argument("--json", action="store_true", help="print JSON lines, no table")
    arguments = parser.parse_args()
    batches = [int(part) for part in arguments.batch.split(",")]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    with checkpoint() as folder:
        sides: dict[str, Generate] = {MAIN: load_transformers(folder)}
        for name, exact in EXACT.items():
            sides[name] = MonoRank(folder, exact=exact, max_sequences=max(batches)).generate
        for batch in batches:
            result = measure(sides, batch, runs=arguments.runs)
            lines = map(json.dumps, rows(result)) if arguments.json else [table_line(result)]
            for line in lines:
                sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
