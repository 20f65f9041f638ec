"""Fail when a Markdown page points at something that is not there.

Three kinds of pointer rot when files move: relative links, links to a heading, and paths named in
`code` such as `transfer/plan.py`. Addresses on the network are left alone, so that the check needs
none.

Run as ``python -m tools.check_links [FILE ...]``.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = Path("src/headrace")

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
# A path in code: at least one slash, and a known suffix or a closing slash for a folder.
CODE_PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md|toml|txt|svg|jsonl?|sh|yml))?")


def anchor(heading: str) -> str:
    """The fragment by which forges link to a heading.

    >>> anchor("What `exact` guarantees, and what not")
    'what-exact-guarantees-and-what-not'
    """
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Every fragment that a page offers."""
    return {anchor(h) for h in HEADING.findall(FENCE.sub("", text))}


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Yield the relative links of a page that lead nowhere."""
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        aim = page.parent / name if name else page
        if not aim.exists():
            yield f"link to {target}: no such file"
        elif fragment and aim.suffix == ".md" and fragment not in anchors(aim.read_text("utf-8")):
            yield f"link to {target}: no such heading"


def is_absent_room(path: str, *, root: Path) -> bool:
    """Whether the path lies in a package that is not begun: the docs may run ahead of those."""
    first = path.removeprefix(f"{PACKAGE}/").split("/")[0]
    return not any((base / first).exists() for base in (root, root / PACKAGE))


def missing_paths(page: Path, text: str, *, root: Path) -> Iterator[str]:
    """Yield the paths named in code that exist neither from the root, the package nor the page."""
    bases = (root, root / PACKAGE, page.parent)
    for code in CODE.findall(text):
        if not CODE_PATH.fullmatch(code) or any((base / code).exists() for base in bases):
            continue
        if not is_absent_room(code, root=root):
            yield f"`{code}`: no such file"


def check_page(page: Path, *, root: Path = ROOT) -> list[str]:
    """All complaints about one page, each with its file."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    shown = page.relative_to(root) if page.is_relative_to(root) else page
    complaints = [*broken_links(page, text), *missing_paths(page, text, root=root)]
    return [f"{shown}: {complaint}" for complaint in complaints]


def pages(root: Path) -> Iterator[Path]:
    """The Markdown pages of the project: those at its root and everything under docs."""
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "docs").rglob("*.md"))


def main(argv: list[str] | None = None) -> int:
    """Print the complaints and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args(argv).files or list(pages(ROOT))
    complaints = [c for page in files for c in check_page(page.resolve())]
    for complaint in complaints:
        print(complaint)
    print(f"links: {len(complaints)} broken in {len(files)} pages")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
