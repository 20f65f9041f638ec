"""Pointers that lead nowhere are found; pointers that lead somewhere are not."""

from pathlib import Path

import pytest

from tools.check_links import anchors, check_page, main


@pytest.fixture
def root(tmp_path: Path) -> Path:
    room = tmp_path / "src" / "headrace" / "transfer"
    room.mkdir(parents=True)
    (room / "plan.py").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "other.md").write_text("# Other page\n\n## What it costs, in `us`\n")
    return tmp_path


def complaints(root: Path, text: str) -> list[str]:
    page = root / "docs" / "page.md"
    page.write_text(text, encoding="utf-8")
    return [c.removeprefix("docs/page.md: ") for c in check_page(page, root=root)]


@pytest.mark.parametrize(
    "text",
    [
        "[other](other.md)",
        "[cost](other.md#what-it-costs-in-us)",
        "# Here\n[up](#here)",
        "[site](https://example.org/missing.md)",
        "![drawing](../src)",
        "`transfer/plan.py`",
        "`src/headrace/transfer/plan.py`",
        "`src/headrace/transfer/`",
        "`other.md`",
        "`TP/EP`",
        "`bf16`",
        "```\n[no](link.md) `transfer/none.py`\n```\n",
        "`notbegun/plan.py`",
    ],
)
def test_sound_pointers_pass(root: Path, text: str) -> None:
    assert complaints(root, text) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[gone](gone.md)", "link to gone.md: no such file"),
        ("[cost](other.md#price)", "link to other.md#price: no such heading"),
        ("[up](#nowhere)", "link to #nowhere: no such heading"),
        ("`transfer/gone.py`", "`transfer/gone.py`: no such file"),
        ("`transfer/gone/`", "`transfer/gone/`: no such file"),
        ("`docs/gone.md`", "`docs/gone.md`: no such file"),
    ],
)
def test_rotten_pointers_are_named(root: Path, text: str, complaint: str) -> None:
    assert complaints(root, text) == [complaint]


def test_headings_in_code_blocks_offer_no_anchor() -> None:
    assert anchors("# One\n\n```\n# two\n```\n") == {"one"}


def test_the_exit_status_tells(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = root / "docs" / "page.md"
    page.write_text("[gone](gone.md)\n")
    assert main([str(page)]) == 1
    assert "gone.md: no such file" in capsys.readouterr().out
    assert main([str(root / "docs" / "other.md")]) == 0


def test_the_pages_of_this_repository_are_sound() -> None:
    assert main([]) == 0
