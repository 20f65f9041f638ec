"""Memory of several processes, shared pages counted once."""

import os
from pathlib import Path

from headrace.cli.memory import total_pss_bytes


def write(proc: Path, pid: int, kib: int) -> None:
    (proc / str(pid)).mkdir(parents=True)
    text = (
        f"00400000-ff000000 ---p 0 00:00 0 [rollup]\nRss: 99999 kB\nPss: {kib} kB\nPss_Anon: 7 kB\n"
    )
    (proc / str(pid) / "smaps_rollup").write_text(text)


def test_the_shares_of_all_processes_add_up(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    write(tmp_path, 2, 20)
    assert total_pss_bytes([1, 2], proc=tmp_path) == 30 << 10


def test_a_process_that_has_ended_counts_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    assert total_pss_bytes([1, 2], proc=tmp_path) == 10 << 10


def test_this_process_takes_something() -> None:
    assert total_pss_bytes([os.getpid()]) > 1 << 20
