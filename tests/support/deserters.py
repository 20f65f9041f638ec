"""Clients that ask for an answer to a long prompt and leave before they have it."""

from __future__ import annotations

import asyncio
import json
import random
from urllib.parse import urlsplit

import httpx

# Up to this long after the request was sent: anywhere between tokenizing and decoding.
LONGEST_STAY_S = 1.0


async def desert(url: str, body: dict[str, object], *, stay_s: float) -> None:
    """Post a completion over a connection of its own and close it after ``stay_s``."""
    address, data = urlsplit(url), json.dumps(body).encode()
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    await asyncio.sleep(stay_s)
    writer.close()


async def _desert_all(url: str, model: str, *, count: int, prompt_tokens: int, seed: int) -> None:
    draw = random.Random(seed)
    await asyncio.gather(
        *(
            desert(
                url,
                {
                    "model": model,
                    # No two prompts begin alike: no cache spares anybody the work.
                    "prompt": [draw.randrange(300, 4000) for _ in range(prompt_tokens)],
                    "max_tokens": 500,
                    "ignore_eos": True,
                    "stream": bool(number % 2),
                },
                stay_s=draw.uniform(0.0, LONGEST_STAY_S),
            )
            for number in range(count)
        )
    )


def desert_all(url: str, *, count: int, prompt_tokens: int, seed: int) -> None:
    """Have ``count`` clients, all at once, send prompts and leave; half of them read a stream."""
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    asyncio.run(_desert_all(url, model, count=count, prompt_tokens=prompt_tokens, seed=seed))
