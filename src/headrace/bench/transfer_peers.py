"""The two processes of a transfer benchmark: a receiver of each kind, and the sender's end of it.

Both sides of every pair are driven alike: the receiver says that it is ready, the sender sends a
list of writes back to back, and the receiver says when it has the last byte.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import select
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout, KvSchema
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import Completion, Fragments, Grant, Transport
from headrace.transfer.engine import TransferEngine
from headrace.transfer.segment import create_segment
from headrace.transfer.shm import ShmTransport
from headrace.transfer.tcp import TcpTransport

# A pool of 4096 atoms of 32 KiB, far larger than any cache: no pair may live on a warm one.
ATOM_BYTES = 32 << 10
LAYOUT = CacheLayout(
    layers=(KvSchema(num_kv_heads=1, head_dim=128, dtype="bfloat16"),),
    first_head=0,
    num_heads=1,
    num_blocks=2048,
    block_size=128,
)
# Writes that are under way at once, as the layers of a step are.
WINDOW = 32
PATIENCE_S = 60.0
_KEY = bytes(32)
Bytes = npt.NDArray[np.uint8]


class Pair:
    """A sender here and a receiver in a process of its own.

    Args:
        serve: Runs in the receiver's process, with its end of a pipe and the run folder.
    """

    def __init__(self, serve: Callable[[Connection, str], None]) -> None:
        self.run_dir = tempfile.mkdtemp(prefix="hr-bench-")
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self.run_dir), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self) -> object:
        """Return what the receiver says next.

        Raises:
            TransferError: It says nothing, or has ended.
        """
        if not self.pipe.poll(PATIENCE_S):
            raise TransferError(f"the receiver said nothing for {PATIENCE_S} s")
        return self.pipe.recv()

    def close(self) -> None:
        """End the receiver and remove the run folder."""
        self.pipe.send(None)
        self._process.join(PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.pipe.close()
        shutil.rmtree(self.run_dir)


class TransportPair(Pair):
    """Writes of a transport into the region of another process.

    Args:
        name: ``shm`` or ``tcp``.
        source: What is sent.
    """

    def __init__(self, name: str, source: Bytes) -> None:
        super().__init__(_serve_shm if name == "shm" else _serve_tcp)
        target = self.hear()
        assert isinstance(target, RegionDescriptor)
        self._target = target
        self._engine = _make_engine(name, "prefill0.0", self.run_dir)
        self._source = self._engine.register(source.data)
        self._imm = 0

    def time(self, writes: list[Fragments]) -> float:
        """Return how long it takes until the receiver has all of ``writes`` [s]."""
        imm, self._imm = self._imm, self._imm + 1
        self.pipe.send((imm, sum(write.total_bytes for write in writes)))
        self.hear()
        under_way: deque[Completion] = deque()
        begin_s = perf_counter()
        for write in writes:
            under_way.append(self._engine.write(self._source, self._target, write, imm=imm))
            while len(under_way) >= WINDOW:
                self._wait(under_way.popleft())
        end_s = self.hear()
        for done in under_way:
            self._wait(done)
        self._wait(self._engine.end_writes(self._target, imm))
        assert isinstance(end_s, float)
        return end_s - begin_s

    def close(self) -> None:
        """Close both ends."""
        self._engine.close()
        super().close()

    def _wait(self, done: Completion) -> None:
        while not done.is_done():
            select.select([self._engine.fileno()], [], [], PATIENCE_S)
            self._engine.poll()
        if done.error():
            raise TransferError(done.error())


class SocketPair(Pair):
    """The same bytes through one plain TCP connection of the loopback interface.

    As fast as it gets: large receives that wait for all bytes, lists sent in one call.
    """

    def __init__(self, source: Bytes) -> None:
        super().__init__(_serve_socket)
        self._view = source.data
        port = self.hear()
        assert isinstance(port, int)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def time(self, writes: list[Fragments]) -> float:
        """Return how long it takes until the receiver has all of ``writes`` [s]."""
        lists = [
            [self._view[offset : offset + size] for offset, size in _ranges(write)]
            for write in writes
        ]
        self.pipe.send([write.total_bytes for write in writes])
        self.hear()
        begin_s = perf_counter()
        for views in lists:
            if len(views) == 1:
                self._socket.sendall(views[0])
            elif self._socket.sendmsg(views) != sum(len(view) for view in views):
                raise TransferError("a blocking socket took part of a list")
        end_s = self.hear()
        assert isinstance(end_s, float)
        return end_s - begin_s

    def close(self) -> None:
        """Close both ends."""
        self._socket.close()
        super().close()


class MemcpyPair:
    """The same bytes copied between two shared mappings of this process, without any messages."""

    def __init__(self, source: Bytes) -> None:
        self._segments = [
            create_segment(f"hr-bench-{secrets.token_hex(4)}.{side}", LAYOUT.num_bytes)
            for side in ("source", "target")
        ]
        self._source, self._target = (
            np.frombuffer(segment.buffer, np.uint8) for segment in self._segments
        )
        self._source[:] = source

    def time(self, writes: list[Fragments]) -> float:
        """Return how long ``np.copyto`` takes over each range of ``writes`` [s]."""
        moves = [
            (self._target[to : to + size], self._source[offset : offset + size])
            for write in writes
            for (offset, size), to in zip(
                _ranges(write), write.target_offsets.tolist(), strict=True
            )
        ]
        begin_s = perf_counter()
        for target, source in moves:
            np.copyto(target, source)
        return perf_counter() - begin_s

    def close(self) -> None:
        """Unmap and unlink both."""
        del self._source, self._target
        for segment in self._segments:
            segment.close()


def _ranges(write: Fragments) -> list[tuple[int, int]]:
    return list(zip(write.source_offsets.tolist(), write.num_bytes.tolist(), strict=True))


def _make_engine(name: str, owner: str, run_dir: str) -> TransferEngine:
    transport: Transport
    if name == "shm":
        transport = ShmTransport(
            deployment_id=Path(run_dir).name,
            owner=owner,
            rank=0,
            generation=1,
            run_dir=Path(run_dir),
            key=_KEY,
        )
    else:
        transport = TcpTransport(owner=owner, rank=0, generation=1, key=_KEY)
    engine = TransferEngine(transport, rank=0, generation=1)
    engine.open()
    return engine


def _serve_shm(pipe: Connection, run_dir: str) -> None:
    _serve(pipe, _make_engine("shm", "decode0.0", run_dir))


def _serve_tcp(pipe: Connection, run_dir: str) -> None:
    _serve(pipe, _make_engine("tcp", "decode0.0", run_dir))


def _serve(pipe: Connection, engine: TransferEngine) -> None:
    """Expect each session that the sender announces, and say when it is whole."""
    region, descriptor = engine.allocate(LAYOUT)
    pipe.send(descriptor)
    while (session := pipe.recv()) is not None:
        imm, num_bytes = session
        engine.grant(
            imm,
            Grant(
                region=descriptor,
                block_ids=range(LAYOUT.num_blocks),
                start=0,
                stop=LAYOUT.num_blocks * LAYOUT.block_size,
                replica="prefill0",
                writers={0: 1},
            ),
        )
        engine.expect(imm, num_bytes)
        pipe.send(os.getpid())
        while imm not in engine.poll().completed:
            select.select([engine.fileno()], [], [], PATIENCE_S)
        pipe.send(perf_counter())
        engine.retire(imm)
    region.close()
    engine.close()


def _serve_socket(pipe: Connection, run_dir: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        connection, _ = listener.accept()
    memory = memoryview(bytearray(LAYOUT.num_bytes))
    while (sizes := pipe.recv()) is not None:
        pipe.send(os.getpid())
        begin = 0
        for size in sizes:
            begin = begin if begin + size <= len(memory) else 0
            end = begin + size
            while begin < end:
                begin += connection.recv_into(memory[begin:end], 0, socket.MSG_WAITALL)
        pipe.send(perf_counter())
    connection.close()
