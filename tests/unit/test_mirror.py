"""``tests/unit`` mirrors the package file for file, so that nobody has to search for a test."""

from pathlib import Path

import pytest

from tests.support.mirror import has_behaviour, orphaned_tests, untested_modules

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
# What needs a device is tested where the device is.
DEVICE = (ROOT / "tests" / "gpu", ROOT / "tests" / "multi")
PACKAGES = {
    "headrace": (ROOT / "src" / "headrace", UNIT),
    "tools": (ROOT / "tools", UNIT / "tools"),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_module_with_behaviour_has_its_test_file(name: str) -> None:
    package, tree = PACKAGES[name]
    untested = list(untested_modules(package, tree, *DEVICE))
    assert not untested, "\n" + "\n".join(untested)


def test_no_test_file_outlives_its_module() -> None:
    package, tree = PACKAGES["headrace"]
    orphans = [path for path in orphaned_tests(package, tree) if not path.startswith("tools/")]
    assert not orphans, "\n" + "\n".join(orphans)
    assert list(orphaned_tests(ROOT, UNIT)) != [], "the rule finds nothing: it has stopped working"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("LIMIT = 3\n", False),
        ("class Id(int): pass\n", False),
        ('class Clock(Protocol):\n    def now_s(self) -> float:\n        """Now."""\n', False),
        ("def now_s() -> float: ...\n", False),
        ("def now_s() -> float: return 0.0\n", True),
        ("class Clock:\n    async def tick(self):\n        await self.next()\n", True),
    ],
    ids=["constant", "class", "protocol", "stub", "function", "method"],
)
def test_only_a_function_that_does_something_is_behaviour(source: str, expected: bool) -> None:
    assert has_behaviour(source) is expected


def test_the_mirror_reports_both_directions(tmp_path: Path) -> None:
    package, tree = tmp_path / "package", tmp_path / "unit"
    (package / "room").mkdir(parents=True)
    (tree / "room").mkdir(parents=True)
    (package / "room" / "plan.py").write_text("def plan() -> int: return 1\n")
    (tree / "room" / "test_session.py").touch()
    assert list(untested_modules(package, tree)) == ["room/plan.py wants unit/room/test_plan.py"]
    assert list(orphaned_tests(package, tree)) == ["room/test_session.py"]
    (tree / "room" / "test_plan_properties.py").touch()
    assert list(orphaned_tests(package, tree)) == ["room/test_session.py"]
