"""One rank's process: its spec goes in, its lines come out, its end is told."""

import signal
import sys

from headrace.cluster.process import MAX_LINE_BYTES, NUM_LAST_LINES, RankProcess
from headrace.core.launch import LaunchSpec
from headrace.core.sharding import Role, Sharding

SPEC = LaunchSpec(
    deployment_id="headrace-test",
    run_dir="/nowhere",
    key="00" * 16,
    model="model",
    replica="decode0",
    role=Role.DECODE,
    sharding=Sharding(),
    rank=1,
    generation=1,
    ranks_on_host=1,
    supervisor="ipc:///nowhere/supervisor.ctl",
)


async def run(code):
    lines = []
    process = RankProcess(
        SPEC,
        command=(sys.executable, "-c", "import os, sys, signal\n" + code),
        on_line=lambda name, line: lines.append((name, line)),
    )
    assert not process.is_alive
    await process.spawn()
    return process, await process.wait(), lines


async def test_the_spec_comes_whole_on_standard_input():
    process, ended, lines = await run("sys.stdout.buffer.write(sys.stdin.buffer.read())")
    assert LaunchSpec.from_json(lines[0][1].encode()) == SPEC
    assert (lines[0][0], ended.name, ended.exit_code) == ("decode0.1", "decode0.1", 0)
    assert not process.is_alive


async def test_both_outputs_are_read_and_the_last_lines_kept():
    code = "for i in range(50): print(i, file=(sys.stdout, sys.stderr)[i % 2], flush=True)"
    _, ended, lines = await run(code + "\nsys.exit(4)")
    assert [line for _, line in lines] == [str(i) for i in range(50)]
    assert ended.last_lines == tuple(str(i) for i in range(50 - NUM_LAST_LINES, 50))
    assert ended.exit_code == 4


async def test_broken_text_and_endless_lines_are_survived():
    code = f"sys.stdout.buffer.write(bytes([255, 10]) + b'x' * {3 * MAX_LINE_BYTES} + b'end')"
    _, ended, lines = await run(code)
    assert lines[0][1] == "\N{REPLACEMENT CHARACTER}"
    assert "".join(line for _, line in lines[1:]) == "x" * 3 * MAX_LINE_BYTES + "end"
    assert ended.exit_code == 0


async def test_a_process_that_never_reads_its_spec_is_no_error():
    _, ended, _ = await run("os.close(0); os._exit(5)")
    assert ended.exit_code == 5


async def test_an_end_by_signal_is_told_from_an_exit():
    _, ended, _ = await run("os.kill(os.getpid(), signal.SIGSEGV)")
    assert ended.is_signal
    assert str(ended) == "decode0.1 was ended by SIGSEGV"


async def test_a_rank_has_a_session_of_its_own():
    _, _, lines = await run("print(os.getsid(0) == os.getpid() == os.getpgrp())")
    assert lines == [("decode0.1", "True")]


async def test_a_signal_reaches_the_whole_group_and_none_after_reaping():
    lines = []
    process = RankProcess(
        SPEC,
        command=("/bin/sh", "-c", "sleep 600 & echo started; wait"),
        on_line=lambda name, line: lines.append(line),
    )
    process.send_signal(signal.SIGKILL)
    await process.spawn()
    process.send_signal(signal.SIGKILL)
    ended = await process.wait()
    assert ended.exit_code == -9
    process.send_signal(signal.SIGKILL)
    assert await process.wait() is ended
