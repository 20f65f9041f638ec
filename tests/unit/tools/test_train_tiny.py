"""A miniature training run leaves everything that the real one does."""

import json
import logging
import sys
from pathlib import Path

import pytest

from tools import train_tiny
from tools.tiny.network import TinyConfig

HELDOUT = Path(__file__).parents[2] / "data" / "heldout_grammar.txt"
SMALL = TinyConfig(vocab_size=400, hidden_size=32, num_layers=1, num_experts=4, expert_width=16)


def test_a_miniature_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_tiny, "TinyConfig", lambda: SMALL)
    monkeypatch.setattr(train_tiny, "POSITION_EDGES", (0, 16, 64))
    # The run's log file would otherwise stay open behind the test.
    monkeypatch.setattr(train_tiny, "set_up_log", lambda directory: directory.mkdir())
    monkeypatch.setattr(logging.getLogger("train_tiny"), "disabled", True)
    out, text = tmp_path / "out", tmp_path / "text"
    text.write_text(HELDOUT.read_text()[:9000].rpartition("<|endoftext|>\n")[0])
    flags = "--device cpu --max-documents 20 --steps 3 --long-steps 1 --batch-tokens 128 "
    flags += "--row-tokens 64 --long-row-tokens 128 --check-every-steps 2 --log-every-steps 2"
    paths = ["--text", text, "--books", text, "--heldout", f"grammar={text}", "--out", out]
    # Their own test covers them; an untrained model would write to the limit.
    monkeypatch.setattr(train_tiny.samples, "write_samples", lambda *_, seed: [f"seed {seed}"])
    monkeypatch.setattr(sys, "argv", ["train_tiny", *map(str, paths), *flags.split()])
    train_tiny.main()
    assert {"files", "evaluation.json", "loss.png", "samples.md"} <= {p.name for p in out.iterdir()}
    assert json.loads((out / "evaluation.json").read_text())["grammar"]["predictions"] > 1000
