"""Device benches print tables, keep rows as they come, and end badly when a kernel raised."""

import io
import json

import pytest
from rich.console import Console

from headrace.bench.device import run
from headrace.bench.device.measure import CaseResult
from headrace.cli.bench_families import report
from headrace.cli.main import main


def result(case: str, *, failed=None, p50_us=1234.5678) -> CaseResult:
    row = {"bench": "kernels", "case": case, "variant": "headrace", "kernel": "triton"}
    row |= {"p50_us": p50_us, "p99_us": 2.0, "floor_us": 1.0, "fraction": 0.25}
    row |= {"machine": "GPU; host", "ratio": 3.0, "baseline": "library"}
    declined = {"cold_triton": "too warm"}
    return CaseResult(case=case, rows=[row], declined=declined, failed=failed or {})


@pytest.fixture
def scripted(monkeypatch):
    """Let the bench yield scripted results; return what it was asked for."""
    asked = {"results": []}

    def run_bench(name, families, **options):
        asked.update(name=name, families=list(families), **options)
        yield from asked["results"]

    monkeypatch.setattr(run, "run_bench", run_bench)
    return asked


def test_a_table_a_family_with_what_was_declined_once():
    text = io.StringIO()
    results = [result("route/t1"), result("route/t8"), result("combine/t1")]
    rows, failures = report(results, None, console=Console(file=text, width=160))
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert "route/t1 triton * 1234.6 2 1 0.25 3 library" in lines
    assert lines.count("route: some cases without cold_triton: too warm") == 1
    assert sum(line.startswith("case kernel") for line in lines) == 2
    assert (len(rows), failures) == (3, [])


def test_a_table_marks_inputs_that_may_be_cached():
    text = io.StringIO()
    cached = result("route/t1")
    cached.rows[0]["may_be_cached"] = True
    report([cached, result("route/t8")], None, console=Console(file=text, width=160))
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert "route/t1 triton * 1234.6 2 1 0.25 L2 3 library" in lines
    assert "route/t8 triton * 1234.6 2 1 0.25 3 library" in lines


def test_rows_are_kept_before_the_next_case_is_measured(tmp_path):
    path = tmp_path / "rows.jsonl"

    def results():
        yield result("route/t1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report(results(), path, console=Console(file=io.StringIO()))
    assert [json.loads(line)["case"] for line in path.read_text().splitlines()] == ["route/t1"]


def test_a_kernel_that_raised_is_a_line_and_exit_code_1(scripted, capsys, tmp_path):
    scripted["results"] = [result("route/t1", failed={"library": "ImportError: no"})]
    png = tmp_path / "a.png"
    assert main(["bench", "kernels", "--png", str(png)]) == 1
    assert "route/t1 library: ImportError: no" in capsys.readouterr().err
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_file_that_cannot_be_written_is_refused_before_measuring(scripted, capsys, tmp_path):
    assert main(["bench", "kernels", "--json", str(tmp_path / "no" / "rows.jsonl")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert "name" not in scripted


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["bench", "kernels"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "headrace: bench kernels needs a CUDA device: torch.cuda.is_available() is False here\n"
    )
