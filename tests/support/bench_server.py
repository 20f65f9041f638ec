"""A server that streams canned answers, cut into reads as a test asks."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

EVENT = b'data: {"choices":[{"text":"x"}]}\n\n'
END = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
MODELS = json.dumps({"data": [{"id": "canned"}]}).encode()


def answer(num_tokens: int) -> list[bytes]:
    return [HEAD, *[EVENT] * num_tokens, END]


class CannedServer:
    """Answers each request by ``parts``; the last part ends the answer, not the connection."""

    def __init__(self, parts: list[bytes], *, hangs_up: bool = False) -> None:
        self.parts = parts
        self.requests: list[bytes] = []
        self._hangs_up = hangs_up

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET /v1/models"):
                    length = len(MODELS)
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + MODELS)
                    await writer.drain()
                    continue
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                self.requests.append(await reader.readexactly(length))
                for part in self.parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self._hangs_up:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.contextmanager
def canned(server: CannedServer) -> Iterator[str]:
    """Run a server in a thread of its own and yield its address."""
    ready, address = threading.Event(), []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        address.append(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        ready.set()
        await stop.wait()
        listening.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listening.wait_closed()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
