"""Fail when a file or a function outgrows the limits of the house.

Small files with one idea each are a rule that only a machine keeps. A function is measured without
its docstring and decorators, since neither makes it harder to follow; a GPU kernel gets more room,
since splitting one often costs speed.

Run as ``python -m tools.check_limits [--warnings] [PATH ...]``.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEFAULT_PATHS = ("src", "tests", "tools", "bench", "examples")

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_KERNEL_LINES = 200
MAX_POSITIONAL = 3

# `@triton.jit`, `@cute.jit`, `@cute.kernel`: the decorators that mark device code.
KERNEL_DECORATORS = frozenset({"triton.jit", "cute.jit", "cute.kernel"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line to print; only a fault makes the check fail."""

    path: Path
    line: int
    message: str
    is_fault: bool = True


def is_kernel(function: Function) -> bool:
    """Whether a decorator marks the function as device code."""
    names = (ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list)
    return any(name in KERNEL_DECORATORS for name in names)


def body_lines(function: Function) -> int:
    """Lines from ``def`` to the end, the docstring not counted."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None or first.end_lineno is None:
        return total
    return total - (first.end_lineno - first.lineno + 1)


def num_positional(function: Function) -> int:
    """Parameters a caller may pass by position, ``self`` and ``cls`` not counted."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def check_functions(tree: ast.Module, path: Path) -> Iterator[Finding]:
    """Yield too long functions as faults, and long positional lists as warnings."""
    # Kernels take their tensors by position, so the whole of that room is let off.
    takes_tensors = "kernels" in path.parts
    for node in ast.walk(tree):
        if not isinstance(node, Function):
            continue
        limit = MAX_KERNEL_LINES if is_kernel(node) else MAX_FUNCTION_LINES
        length = body_lines(node)
        if length > limit:
            message = f"{node.name} has {length} lines without its docstring, limit {limit}"
            yield Finding(path=path, line=node.lineno, message=message)
        positional = num_positional(node)
        if positional > MAX_POSITIONAL and not takes_tensors:
            message = f"{node.name} takes {positional} arguments by position, aim {MAX_POSITIONAL}"
            yield Finding(path=path, line=node.lineno, message=message, is_fault=False)


def check_ascii(text: str, path: Path) -> Iterator[Finding]:
    """Yield each line with a character outside ASCII."""
    # Tests of multi-byte text are easier to judge when they show it.
    if "tests" in path.parts:
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.isascii():
            wrong = sorted({c for c in line if not c.isascii()})
            message = f"not ASCII: {', '.join(ascii(c) for c in wrong)}; write the escape"
            yield Finding(path=path, line=number, message=message)


def check_file(path: Path, *, root: Path = ROOT) -> list[Finding]:
    """All findings of one Python file, its path shown relative to ``root``."""
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    text = path.read_text(encoding="utf-8")
    findings = []
    num_lines = len(text.splitlines())
    if num_lines > MAX_FILE_LINES:
        message = f"file has {num_lines} lines, limit {MAX_FILE_LINES}"
        findings.append(Finding(path=shown, line=1, message=message))
    findings += check_ascii(text, shown)
    findings += check_functions(ast.parse(text, filename=str(path)), shown)
    return findings


def python_files(paths: list[Path]) -> Iterator[Path]:
    """Every Python file named by, or lying under, the paths."""
    for path in paths:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(argv: list[str] | None = None) -> int:
    """Print the findings and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--warnings", action="store_true", help="list what does not fail too")
    args = parser.parse_args(argv)
    paths = args.paths or [ROOT / name for name in DEFAULT_PATHS if (ROOT / name).exists()]
    findings = [f for path in python_files(paths) for f in check_file(path)]
    faults = [f for f in findings if f.is_fault]
    for finding in findings if args.warnings else faults:
        kind = "" if finding.is_fault else "warning: "
        print(f"{finding.path}:{finding.line}: {kind}{finding.message}")
    print(f"limits: {len(faults)} faults, {len(findings) - len(faults)} warnings (--warnings)")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
