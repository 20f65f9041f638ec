"""``bench serve`` loads a server, prints figures, keeps rows, and compares when asked."""

import json
from contextlib import contextmanager

import pytest

from headrace.bench.summary import Slo
from headrace.cli import bench_serve
from headrace.cli.bench_serve import as_mono, parse_slo
from headrace.cli.main import main
from headrace.core.errors import ConfigError
from headrace.deployment import DeploymentConfig, ReplicaConfig
from tests.support.bench_server import CannedServer, answer, canned

SHORT = ["--requests", "6", "--concurrency", "2", "--prompt-tokens", "4", "--output-tokens", "3"]


def test_a_running_server_is_loaded_and_the_rows_are_kept(tmp_path, capsys):
    out, png = tmp_path / "rows.jsonl", tmp_path / "a.png"
    with canned(CannedServer(answer(3))) as url:
        args = ["bench", "serve", "--url", url, *SHORT, "--out", str(out), "--png", str(png)]
        assert main(args) == 0
    text = capsys.readouterr().out
    assert "headrace: 6 requests, 18 tokens" in text
    (row,) = map(json.loads, out.read_text().splitlines())
    assert (row["bench"], row["case"], row["tokens"]) == ("serve", "2", 18)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_comparison_runs_both_deployments_and_ends_with_an_answer(monkeypatch, capsys):
    served = []

    @contextmanager
    def serving(config):
        served.append(config)
        with canned(CannedServer(answer(3))) as url:
            yield url

    monkeypatch.setattr(bench_serve, "serving", serving)
    split = ["--prefill", "tp=2", "--decode", "dp=1", "--compare", "mono"]
    assert main(["bench", "serve", *split, *SHORT]) == 0
    assert [config.mono is None for config in served] == [True, False]
    assert served[1].mono.replicas == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(("Split", "Do not split", "Either"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--compare", "vllm"], "--compare 'vllm': expected mono"),
        (["--compare", "mono", "--url", "http://h:1"], "--compare beside --url"),
        (["--compare", "mono"], "give a split deployment"),
        (["--slo", "ttft=x"], "--slo 'ttft=x': expected seconds above 0"),
        (["--out", "/nowhere/rows"], "there is no folder /nowhere"),
        (["--url", "http://127.0.0.1:9"], "nobody answers at http://127.0.0.1:9"),
        (["--trace", "/nowhere/t.csv"], "cannot be read"),
    ],
)
def test_what_cannot_be_is_one_line(flags, message, capsys):
    assert main(["bench", "serve", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_bounds_of_goodput():
    assert parse_slo("ttft=2") == Slo(ttft_s=2.0)
    assert parse_slo("itl=0.5, ttft=3") == Slo(ttft_s=3.0, itl_s=0.5)
    for text in ("", "ttft=0", "ttft=nan", "x=1", "ttft"):
        with pytest.raises(ConfigError, match="--slo"):
            parse_slo(text)


def test_the_other_side_has_as_many_ranks():
    split = DeploymentConfig(
        prefill=ReplicaConfig(tp=2, replicas=2), decode=ReplicaConfig(dp=2), transport="tcp"
    )
    mono = as_mono(split)
    assert (mono.prefill, mono.decode) == (None, None)
    assert mono.mono == ReplicaConfig(dp=1, ep=1, replicas=6)
