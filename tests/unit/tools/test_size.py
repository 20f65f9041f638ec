"""Lines are counted per room, and the table shows each beside its ceiling."""

from pathlib import Path

from tools.size import CEILINGS, measure, report


def test_a_room_is_the_sum_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "core" / "deep").mkdir(parents=True)
    (tmp_path / "core" / "ids.py").write_text("a = 1\n\nb = 2\n")
    (tmp_path / "core" / "deep" / "more.py").write_text("c = 3\n")
    (tmp_path / "core" / "data.json").write_text("{}\n" * 100)
    assert measure(tmp_path) == {"core": 4}


def test_the_deployment_file_counts_with_the_commands(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "main.py").write_text("a = 1\n")
    (tmp_path / "deployment.py").write_text("b = 2\n")
    assert measure(tmp_path) == {"cli": 2}


def test_a_room_without_a_ceiling_is_shown_as_such() -> None:
    table = report({"core": CEILINGS["core"] // 2, "attic": 7})
    assert "50%" in table
    assert "no ceiling" in table
