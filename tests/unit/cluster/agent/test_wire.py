"""A keyed connection: both ends prove the secret, and nothing changed or repeated is believed."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.agent.orders import AnyOrder, Beat, Spawned, Sweep
from headrace.cluster.agent.wire import (
    MAX_FRAME_BYTES,
    Wire,
    WrongKeyError,
    hang_up,
    meet_agent,
    meet_supervisor,
)
from headrace.core.errors import ConfigError, HeadraceError, ProtocolError
from tests.support.cluster_agents import PATIENCE_S, SECRET

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SWEEP = Sweep(replica="prefill0", rank=1, generation=2)


@asynccontextmanager
async def connection(agent: Callable[..., Awaitable[None]]) -> AsyncIterator[Streams]:
    """Streams to a server that treats each connection as ``agent`` does."""
    server = await asyncio.start_server(agent, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            await hang_up(writer)


class AgentEnd:
    """The agent's end of one connection."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.secret = secret
        self.met: asyncio.Future[Wire[AnyOrder]] = asyncio.get_running_loop().create_future()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.met.set_result(await meet_supervisor(reader, writer, self.secret))
        except (HeadraceError, ConnectionError) as error:
            self.met.set_exception(error)
            await hang_up(writer)


async def test_both_ends_meet_and_messages_go_both_ways() -> None:
    end = AgentEnd()
    async with connection(end) as streams:
        ours = await meet_agent(*streams, SECRET)
        theirs = await end.met
        for number in range(3):
            ours.send(SWEEP)
            theirs.send(Spawned(number=number, pid=7))
        for number in range(3):
            assert await theirs.recv(PATIENCE_S) == SWEEP
            assert await ours.recv(PATIENCE_S) == Spawned(number=number, pid=7)
        await theirs.close()
        with pytest.raises(ConnectionError, match="ended"):
            await ours.recv(PATIENCE_S)


async def test_an_agent_with_another_key_is_refused_by_name() -> None:
    end = AgentEnd(secret=bytes(32))
    async with connection(end) as streams:
        with pytest.raises(WrongKeyError, match="copy the same key file to both hosts"):
            await meet_agent(*streams, SECRET)
        await hang_up(streams[1])
        with pytest.raises(ConnectionError):
            await end.met


async def test_a_supervisor_that_cannot_prove_the_key_is_not_heard() -> None:
    end = AgentEnd()
    async with connection(end) as (reader, writer):
        writer.write(struct.pack("!4sH32s", b"HRAG", 1, bytes(32)))
        await reader.readexactly(38 + 32)
        writer.write(bytes(32))
        with pytest.raises(WrongKeyError, match="does not hold this agent's key"):
            await end.met


async def test_what_was_recorded_on_one_connection_is_of_no_use_on_another() -> None:
    recorded: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Stand between a supervisor and its agent, and write down what the former says."""
        to_agent = await asyncio.open_connection(*server.sockets[0].getsockname())
        recorded.append(await reader.readexactly(38))
        to_agent[1].write(recorded[-1])
        writer.write(await to_agent[0].readexactly(38 + 32))
        recorded.append(await reader.readexactly(32))
        to_agent[1].write(recorded[-1])
        await first.met
        await hang_up(to_agent[1])
        await hang_up(writer)

    first, second = AgentEnd(), AgentEnd()
    server = await asyncio.start_server(first, "127.0.0.1", 0)
    async with server, connection(record) as streams:
        wire = await meet_agent(*streams, SECRET)
        with pytest.raises(ConnectionError):
            await wire.recv(PATIENCE_S)
        await (await first.met).close()
    async with connection(second) as (_, writer):
        writer.write(b"".join(recorded))
        with pytest.raises(WrongKeyError):
            await second.met


async def test_another_version_and_a_stranger_are_told_apart() -> None:
    async def other_version(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack("!4sH32s", b"HRAG", 9, bytes(32)) + bytes(32))
        await hang_up(writer)

    async def stranger(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await hang_up(writer)

    async with connection(other_version) as streams:
        with pytest.raises(ConfigError, match="speaks version 9 .* install the same headrace"):
            await meet_agent(*streams, SECRET)
    async with connection(stranger) as streams:
        with pytest.raises(ConfigError, match="something else answered"):
            await meet_agent(*streams, SECRET)


async def feed(*chunks: bytes) -> Wire[AnyOrder]:
    reader = asyncio.StreamReader()
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    return Wire(reader, None, outgoing=SECRET, incoming=SECRET, kind=AnyOrder)  # type: ignore[arg-type]


class Recorder:
    """A stream that keeps what is written."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.chunks.append(data)


def frames(number: int) -> list[bytes]:
    recorder = Recorder()
    wire = Wire(None, recorder, outgoing=SECRET, incoming=SECRET, kind=AnyOrder)  # type: ignore[arg-type]
    for _ in range(number):
        wire.send(SWEEP)
    return recorder.chunks


async def take(wire: Wire[AnyOrder], number: int) -> list[AnyOrder]:
    return [await wire.recv(PATIENCE_S) for _ in range(number)]


async def test_a_frame_that_is_repeated_or_left_out_ends_the_connection() -> None:
    first, second = frames(2)
    for order in ((first, first), (second,)):
        wire = await feed(*order)
        with pytest.raises(ProtocolError, match="out of turn"):
            await take(wire, 2)
    wire = await feed(first, second)
    assert await take(wire, 2) == [SWEEP, SWEEP]


@given(at=st.integers(0, len(frames(1)[0]) - 1), flip=st.integers(1, 255))
async def test_a_changed_byte_is_never_believed(at: int, flip: int) -> None:
    frame = bytearray(frames(1)[0])
    frame[at] ^= flip
    wire = await feed(bytes(frame))
    with pytest.raises((ProtocolError, ConnectionError)):
        await wire.recv(PATIENCE_S)


@given(st.binary(max_size=100))
async def test_noise_and_cut_frames_are_errors(noise: bytes) -> None:
    wire = await feed(noise)
    with pytest.raises((ProtocolError, ConnectionError)):
        await wire.recv(PATIENCE_S)


async def test_a_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    wire = await feed(struct.pack("!I", MAX_FRAME_BYTES + 1))
    with pytest.raises(ProtocolError, match="the limit is"):
        await wire.recv(PATIENCE_S)


async def test_silence_ends_a_connection() -> None:
    end = AgentEnd()
    async with connection(end) as streams:
        ours = await meet_agent(*streams, SECRET)
        with pytest.raises(ConnectionError, match=r"silent for 0\.01 s"):
            await ours.recv(0.01)
        assert not ours.is_crowded
        await (await end.met).close()


async def test_a_peer_that_reads_nothing_is_noticed_and_does_not_hold_up_the_close() -> None:
    end = AgentEnd()
    async with connection(end) as streams:
        ours = await meet_agent(*streams, SECRET)
        while not ours.is_crowded:
            ours.send(Sweep(replica="x" * (MAX_FRAME_BYTES // 2), rank=0, generation=0))
        await ours.close()
        ours.send(Beat())
        await (await end.met).close()
