"""``transfer explain``: the engine's own plan, from flags."""

from pathlib import Path

import numpy as np
import pytest

from headrace.cli.main import main
from headrace.cli.transfer import Side, plan_between
from headrace.core.layouts import KvSchema
from tests.support.cli_model import write_model

SHAPE = ["--kv-heads", "4", "--head-dim", "8", "--layers", "2"]
SCHEMAS = (KvSchema(num_kv_heads=4, head_dim=8, dtype="bfloat16"),) * 2


def side(name: str, tp: int, block_size: int) -> Side:
    return Side(name=name, tp=tp, block_size=block_size)


def run(*args: str) -> int:
    return main(["transfer", "explain", *args])


def test_a_plan_is_printed_with_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SHAPE, "--prefill", "tp=4", "--tokens", "101", "--start", "20") == 0
    out = capsys.readouterr().out
    assert "tokens [20, 100)" in out
    # 80 tokens x 2 layers x K and V x 4 heads x 8 wide x 2 bytes.
    assert f"{80 * 2 * 2 * 4 * 8 * 2:,}" in out


def test_the_shape_can_come_from_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(write_model(tmp_path))
    assert run("--model", folder, "--tokens", "11", "--dtype", "bfloat16") == 0
    # 10 tokens x 2 layers x K and V x 4 heads x 16 wide x 2 bytes.
    assert f"{10 * 2 * 2 * 4 * 16 * 2:,}" in capsys.readouterr().out


def test_the_picture_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    assert run(*SHAPE, "--svg", str(path)) == 0
    assert path.read_text().startswith("<svg")


def test_scattered_blocks_need_more_writes_for_the_same_bytes() -> None:
    sides = side("prefill", 2, 16), side("decode", 1, 32)
    together = plan_between(*sides, SCHEMAS, tokens=1000).all_layers(0, 0).num_bytes
    apart = plan_between(*sides, SCHEMAS, tokens=1000, scatter=5).all_layers(0, 0).num_bytes
    assert together.sum() == apart.sum()
    assert apart.size > together.size


def test_the_same_seed_scatters_alike_and_both_sides_differently() -> None:
    sides = side("prefill", 1, 16), side("decode", 1, 16)
    one, two = (plan_between(*sides, SCHEMAS, tokens=500, scatter=5) for _ in range(2))
    assert np.array_equal(one.source.blocks, two.source.blocks)
    assert not np.array_equal(one.source.blocks, one.target.blocks)


@pytest.mark.parametrize("prefill", [1, 2, 4, 8])
@pytest.mark.parametrize("decode", [1, 2, 4, 8])
def test_every_pair_of_head_splits_has_a_plan_that_proves_itself(prefill: int, decode: int) -> None:
    sides = side("prefill", prefill, 16), side("decode", decode, 32)
    plan = plan_between(*sides, SCHEMAS, tokens=77, start=13, scatter=1)
    assert plan.prove() is plan
    assert (len(plan.sources), len(plan.targets)) == (prefill, decode)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--kv-heads", "4"], "--head-dim is missing: give --kv-heads, --head-dim, --layers"),
        ([*SHAPE, "--model", "tiny"], "--kv-heads beside --model"),
        ([*SHAPE, "--dtype", "int3"], "--dtype 'int3': expected one of"),
        ([*SHAPE, "--tokens", "5", "--start", "5"], "expected 0 <= start < tokens"),
        ([*SHAPE, "--tokens", "0"], "'--tokens'"),
        ([*SHAPE, "--tokens", "100000000"], "'--tokens'"),
        ([*SHAPE, "--prefill-block", "24"], "--prefill-block 24: expected a divisor of 128"),
        ([*SHAPE, "--decode", "tp=0"], "--decode tp=0: sizes start at 1"),
        ([*SHAPE, "--prefill", "pt2"], "--prefill 'pt2': expected key=number"),
        ([*SHAPE, "--svg", "/absent/plan.svg"], "--svg /absent/plan.svg: cannot be written"),
        (["--model", "/absent"], "/absent: no such folder"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
