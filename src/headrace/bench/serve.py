"""One load against one running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import uvloop

from headrace.bench.client import LoadClient, Outcome, closed_loop, open_loop
from headrace.bench.workload import LoadRequest
from headrace.core.errors import ConfigError

TIMEOUT_S = 10.0
# Sent before the load, so that no first request pays for what is made once.
WARM_UP = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, and how.

    Attributes:
        requests: The requests.
        concurrency: Requests in flight; 0 sends each at its own time (open loop).
    """

    requests: Sequence[LoadRequest]
    concurrency: int = 0


def run_load(load: Load, *, url: str, api_key: str = "", model: str = "") -> list[Outcome]:
    """Send a load from an event loop of its own and return how each request went.

    Args:
        load: What to send.
        url: The server's address, ``http://HOST:PORT``.
        api_key: Its key, if it wants one.
        model: The served model's name; asked of the server when empty.

    Raises:
        ConfigError: Nobody answers there, or not as this server does.
    """
    name = model or find_model(url, api_key=api_key)
    return uvloop.run(_run(load, LoadClient(url, model=name, api_key=api_key)))


def find_model(url: str, *, api_key: str = "") -> str:
    """Return the name of the model that a server serves."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urlopen(Request(f"{url}/v1/models", headers=headers), timeout=TIMEOUT_S) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except HTTPError as error:
        raise ConfigError(f"{url} refuses: status {error.code}; is --api-key right?") from error
    except (URLError, OSError, ValueError) as error:
        raise ConfigError(f"nobody answers at {url}: {error}; is the server running?") from error
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{url} lists no model: expected an OpenAI-compatible server") from error


async def _run(load: Load, client: LoadClient) -> list[Outcome]:
    encoded = [client.encode(request) for request in load.requests]
    try:
        await closed_loop(client, encoded[:WARM_UP], concurrency=WARM_UP)
        if load.concurrency:
            return await closed_loop(client, encoded, concurrency=load.concurrency)
        times_s = [request.at_s for request in load.requests]
        return await open_loop(client, list(zip(times_s, encoded, strict=True)))
    finally:
        client.close()
        # One turn for the connections to close.
        await asyncio.sleep(0)
