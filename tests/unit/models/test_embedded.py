"""The embedded model ships inside the package and is a checkpoint like any other."""

from __future__ import annotations

from headrace.models.checkpoint.check import check_checkpoint
from headrace.models.embedded import embedded_folder

MAX_BYTES = 8_000_000


def test_the_embedded_checkpoint_passes_the_strict_check() -> None:
    report = check_checkpoint(embedded_folder(), deep=True)
    assert "qwen3_moe" in report.format()


def test_it_stays_small() -> None:
    sizes = [path.stat().st_size for path in embedded_folder().iterdir() if path.is_file()]
    assert 0 < sum(sizes) <= MAX_BYTES


def test_its_draft_layer_lies_beside_it() -> None:
    assert (embedded_folder() / "mtp.safetensors").is_file()
