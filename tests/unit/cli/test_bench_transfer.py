"""``bench transfer`` prints a table and keeps the rows."""

import json

import pytest

from headrace.bench.rows import make_row
from headrace.cli import bench_transfer
from headrace.cli.main import main


@pytest.fixture
def measured(monkeypatch):
    asked = []

    def measure(name, *, repeats):
        asked.append((name, repeats))
        yield make_row("transfer", f"{name}/1MiB", p50_us=2.0, floor_us=1.0, ratio=0.5)

    async def exposed(name):
        asked.append((name, "exposed"))
        return [(1.0, 0.01)]

    monkeypatch.setattr(bench_transfer, "measure", measure)
    monkeypatch.setattr(bench_transfer, "measure_exposed", exposed)
    return asked


def test_both_transports_are_measured_unless_one_is_named(measured, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert main(["bench", "transfer", "--repeats", "3", "--out", str(out)]) == 0
    assert measured == [("shm", 3), ("tcp", 3)]
    assert "shm/1MiB" in capsys.readouterr().out
    assert [json.loads(line)["ratio"] for line in out.read_text().splitlines()] == [0.5, 0.5]
    assert main(["bench", "transfer", "--transport", "tcp", "--exposed"]) == 0
    assert measured[2:] == [("tcp", "exposed")]


def test_an_unknown_transport_is_one_line(measured, capsys):
    assert main(["bench", "transfer", "--transport", "rdma"]) == 2
    assert "--transport 'rdma': expected shm or tcp" in capsys.readouterr().err
    assert measured == []
