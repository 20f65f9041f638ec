"""Print the lines of each package beside its ceiling.

A package near its ceiling is a question for review, not a fault: nothing here fails. Blank lines
and docstrings count, because a reader scrolls past them too.

Run as ``python -m tools.size``.
"""

import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "headrace"

# About 40,000 lines in all. `deployment.py` and the commands share one ceiling.
CEILINGS = {
    "core": 1200,
    "kernels": 8000,
    "comm": 2500,
    "quant": 2000,
    "kvcache": 800,
    "models": 2000,
    "transfer": 3500,
    "text": 1500,
    "scheduler": 1200,
    "engine": 3500,
    "serving": 5000,
    "cluster": 1000,
    "sim": 2000,
    "bench": 3500,
    "cli": 2000,
}
SHARED = {"deployment.py": "cli", "__main__.py": "cli"}


def count_lines(path: Path) -> int:
    """Lines of one file, or of every Python file under a folder."""
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)


def measure(package: Path) -> dict[str, int]:
    """Lines per room, in the order of the ceilings; rooms that are absent are left out."""
    lines = dict.fromkeys(CEILINGS, 0)
    for path in sorted(package.iterdir()):
        if path.is_dir() or path.name in SHARED:
            room = SHARED.get(path.name, path.name)
            lines[room] = lines.get(room, 0) + count_lines(path)
    return {room: count for room, count in lines.items() if count}


def report(lines: dict[str, int]) -> str:
    """The table as text."""
    rows = [f"{'package':<12}{'lines':>8}{'ceiling':>9}{'used':>7}"]
    for room, count in lines.items():
        ceiling = CEILINGS.get(room)
        used = "no ceiling" if ceiling is None else f"{ceiling:>9,}{count / ceiling:>7.0%}"
        rows.append(f"{room:<12}{count:>8,}{used}")
    rows.append(f"{'all':<12}{sum(lines.values()):>8,}{sum(CEILINGS.values()):>9,}")
    return "\n".join(rows)


def main() -> int:
    """Print the table."""
    print(report(measure(PACKAGE)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
