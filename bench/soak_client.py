"""What a soak asks, and how each answer is judged against an undisturbed one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from headrace.models.embedded import embedded_folder
from headrace.text.tokenizer import Tokenizer

# Lengths about a block, a chunk and its multiples, and a prompt that needs no transfer at all.
PROMPT_TOKENS = (1, 2, 15, 16, 17, 33, 96, 129, 200, 300, 511, 513, 700)
OUTPUT_TOKENS = (1, 4, 12, 24, 48, 64)
# Every so many cases begin with the same tokens, for the prefix caches.
SHARED_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One request of the fixed set, as the body of a completion call but for ``stream``."""

    number: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one request ended.

    Attributes:
        outcome: ``right``, ``error`` (named, in time), ``wrong`` (other tokens), ``late``, or
            ``nameless`` (an error or a broken connection without a reason).
        case: Number of the case.
        took_s: From sending to the end [s].
        reason: The error's message.
    """

    outcome: str
    case: int
    took_s: float
    reason: str = ""


class NamedError(Exception):
    """The server ended a request with a reason."""


def make_cases(count: int, *, seed: int) -> list[Case]:
    """Return a fixed set of requests: greedy and sampled, long and short, some alike in front."""
    draw = random.Random(seed)
    vocab_size = Tokenizer.open(embedded_folder()).vocab_size
    # The vocabulary ends with special tokens, which a prompt of ids may hold as well as any.
    shared = [draw.randrange(vocab_size) for _ in range(SHARED_TOKENS)]
    return [_make_case(number, draw, vocab_size, shared) for number in range(count)]


def _make_case(number: int, draw: random.Random, vocab_size: int, shared: list[int]) -> Case:
    own = [draw.randrange(vocab_size) for _ in range(PROMPT_TOKENS[number % len(PROMPT_TOKENS)])]
    body: dict[str, Any] = {
        "prompt": [*shared, *own] if number % 3 == 0 else own,
        "max_tokens": draw.choice(OUTPUT_TOKENS),
        "temperature": 0.0 if number % 2 else 0.9,
        "top_p": draw.choice([1.0, 0.9]),
        "seed": number,
        "frequency_penalty": draw.choice([0.0, 0.5]),
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return Case(number, body)


class SoakClient:
    """Sends cases to one server and judges the answers.

    Args:
        session: Connections, with the server's address as base.
        model: The served model's name.
        deadline_s: Longest time that any request may take to its end, right or not [s].
    """

    def __init__(self, session: aiohttp.ClientSession, *, model: str, deadline_s: float) -> None:
        self._session = session
        self._model = model
        self._deadline_s = deadline_s

    async def tokens(self, case: Case, *, is_stream: bool) -> list[int]:
        """Return a case's output tokens.

        Raises:
            NamedError: The server said why there are none, or no more.
            ValueError: It did not.
        """
        body = {**case.body, "model": self._model, "stream": is_stream}
        async with self._session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                raise _as_error(await response.read())
            if not is_stream:
                ids: list[int] = (await response.json())["choices"][0]["token_ids"]
                return ids
            return [token async for event in _events(response) for token in _token_ids(event)]

    async def leave(self, case: Case, *, after_s: float) -> None:
        """Send a case and hang up after a while, whatever has come."""
        with contextlib.suppress(TimeoutError, NamedError):
            async with asyncio.timeout(after_s):
                await self.tokens(case, is_stream=True)

    async def judge(self, case: Case, want: Sequence[int], *, is_stream: bool) -> Verdict:
        """Send a case and say how it ended."""
        began_s = time.monotonic()
        outcome, reason = "wrong", ""
        try:
            async with asyncio.timeout(self._deadline_s):
                if await self.tokens(case, is_stream=is_stream) == list(want):
                    outcome = "right"
        except NamedError as error:
            outcome, reason = "error", str(error)
        except TimeoutError:
            outcome, reason = "late", f"no end in {self._deadline_s:g} s"
        except (aiohttp.ClientError, ValueError, KeyError) as error:
            outcome, reason = "nameless", repr(error)
        took_s = time.monotonic() - began_s
        return Verdict(outcome=outcome, case=case.number, took_s=took_s, reason=reason)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    is_over = False
    async for line in response.content:
        data = line.strip().removeprefix(b"data: ")
        is_over = is_over or data == b"[DONE]"
        if data and not is_over:
            yield json.loads(data)
    if not is_over:
        raise ValueError("the stream broke off")


def _token_ids(event: dict[str, Any]) -> list[int]:
    if "error" in event:
        raise _named(event)
    return [token for choice in event["choices"] for token in choice.get("token_ids", [])]


def _as_error(body: bytes) -> Exception:
    return _named(json.loads(body))


def _named(answer: dict[str, Any]) -> Exception:
    message = answer["error"]["message"]
    return NamedError(message) if message else ValueError("an error without a message")
