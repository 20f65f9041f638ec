"""What a load consists of: made up, or read from a trace of somebody's requests.

Two formats of traces are read, plain or gzipped: CSV with the columns ``TIMESTAMP``,
``ContextTokens`` and ``GeneratedTokens`` (Azure's LLM inference traces), and JSON lines with
``timestamp`` [ms], ``input_length``, ``output_length`` and optionally ``hash_ids``, one for each
512 tokens of the prompt (Mooncake's): equal ids are equal tokens.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from headrace.core.errors import ConfigError

HASH_BLOCK_TOKENS = 512
# Ids that every vocabulary has, and that are no special tokens in any.
TOKEN_IDS = range(10, 250)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One request of a load.

    Attributes:
        at_s: When it is sent, from the beginning of the load [s]; a closed loop ignores it.
        prompt_ids: Its prompt.
        max_tokens: Output tokens, all of which are generated.
    """

    at_s: float
    prompt_ids: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a trace becomes a load.

    Attributes:
        max_requests: Requests to take, from the beginning; 0 takes all.
        speed: Factor on the rate of arrival.
        scale: Factor on all lengths: a small model has a small context.
        max_prompt_tokens: Longest prompt; longer ones are cut; 0 cuts none.
        max_output_tokens: Likewise of outputs.
        seed: Of the made-up tokens.
    """

    max_requests: int = 0
    speed: float = 1.0
    scale: float = 1.0
    max_prompt_tokens: int = 0
    max_output_tokens: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Line:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def made_up(
    count: int, *, prompt_tokens: int, output_tokens: int, rate: float = 0.0, seed: int = 0
) -> list[LoadRequest]:
    """Return requests of one size with prompts that share nothing.

    Args:
        count: How many.
        prompt_tokens: Tokens of each prompt.
        output_tokens: Tokens of each output.
        rate: Poisson arrivals a second; 0 sends all at once.
        seed: Of prompts and arrivals.
    """
    draw, now_s, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += draw.expovariate(rate) if rate else 0.0
        prompt = draw.choices(TOKEN_IDS, k=prompt_tokens)
        requests.append(LoadRequest(at_s=now_s, prompt_ids=prompt, max_tokens=output_tokens))
    return requests


def read_trace(path: Path, options: TraceOptions) -> list[LoadRequest]:
    """Read a trace, its prompts made up to its lengths and its shared beginnings.

    Raises:
        ConfigError: The file is not there, or of neither format; names the line.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            is_csv = path.name.removesuffix(".gz").endswith(".csv")
            lines = list(_first(_csv_lines(file) if is_csv else _json_lines(file), options))
    except (OSError, UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise ConfigError(f"trace {path}: cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"trace {path}: {error}: expected CSV with TIMESTAMP, ContextTokens, GeneratedTokens, "
            f"or JSON lines with timestamp, input_length, output_length"
        ) from error
    if not lines:
        raise ConfigError(f"trace {path}: no request in it")
    first_s = min(line.at_s for line in lines)
    return [_request(line, options, number, first_s) for number, line in enumerate(lines)]


def _first(lines: Iterable[_Line], options: TraceOptions) -> Iterator[_Line]:
    for number, line in enumerate(lines):
        if options.max_requests and number >= options.max_requests:
            return
        yield line


def _csv_lines(file: Iterable[str]) -> Iterator[_Line]:
    for record in csv.DictReader(file):
        # Seven digits of a second are one more than `fromisoformat` takes in Python 3.11.
        stamp = datetime.fromisoformat(record["TIMESTAMP"].strip()[:26])
        tokens = int(record["ContextTokens"]), int(record["GeneratedTokens"])
        yield _Line(stamp.timestamp(), *tokens)


def _json_lines(file: Iterable[str]) -> Iterator[_Line]:
    for text in file:
        if text.strip():
            record = json.loads(text)
            tokens = int(record["input_length"]), int(record["output_length"])
            yield _Line(
                float(record["timestamp"]) / 1e3, *tokens, tuple(record.get("hash_ids") or ())
            )


def _request(line: _Line, options: TraceOptions, number: int, first_s: float) -> LoadRequest:
    prompt_tokens = _length(line.prompt_tokens, options.scale, options.max_prompt_tokens)
    block_tokens = max(1, round(HASH_BLOCK_TOKENS * options.scale))
    prompt = [
        token
        for hash_id in line.hash_ids[: -(-prompt_tokens // block_tokens)]
        for token in random.Random(f"{options.seed}/{hash_id}").choices(TOKEN_IDS, k=block_tokens)
    ][:prompt_tokens]
    own = random.Random(f"{options.seed}:{number}")
    prompt += own.choices(TOKEN_IDS, k=prompt_tokens - len(prompt))
    return LoadRequest(
        at_s=(line.at_s - first_s) / options.speed,
        prompt_ids=prompt,
        max_tokens=_length(line.output_tokens, options.scale, options.max_output_tokens),
    )


def _length(tokens: int, scale: float, most: int) -> int:
    scaled = max(1, round(tokens * scale))
    return min(scaled, most) if most else scaled


def total_tokens(requests: Sequence[LoadRequest]) -> int:
    """Return the output tokens of a load."""
    return sum(request.max_tokens for request in requests)
