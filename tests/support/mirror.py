"""Compares the tree of the package with the tree of its tests, file for file."""

import ast
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _is_declaration(statement: ast.stmt) -> bool:
    """Whether a statement in a function body only declares: a docstring, ``...`` or ``pass``."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass)


def has_behaviour(source: str) -> bool:
    """Whether any function in the source does something.

    Constants, types, protocols and data classes without methods have nothing to test; the type
    checker reads them already.
    """
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))
    return any(not _is_declaration(s) for function in functions for s in function.body)


def expected_test(module: Path) -> Path:
    """Where the tests of a module lie, both paths being relative to their trees."""
    return module.with_name(f"test_{module.stem.strip('_')}.py")


def untested_modules(package: Path, *test_trees: Path) -> Iterator[str]:
    """Yield each module with behaviour that has no test file in any of the trees."""
    for path in sorted(package.rglob("*.py")):
        wanted = expected_test(path.relative_to(package))
        if any((tree / wanted).is_file() for tree in test_trees):
            continue
        if has_behaviour(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(package)} wants {test_trees[0].name}/{wanted}"


def orphaned_tests(package: Path, test_tree: Path) -> Iterator[str]:
    """Yield each test file whose module is gone.

    ``test_plan_properties.py`` may stand beside ``test_plan.py``: a part of the name that ends at
    an underscore is enough. Tests at the top of the tree are about the tree itself.
    """
    for path in sorted(test_tree.rglob("test_*.py")):
        folder = path.parent.relative_to(test_tree)
        parts = path.stem.removeprefix("test_").split("_")
        names = {"_".join(parts[:end]) for end in range(1, len(parts) + 1)}
        stems = {module.stem.strip("_") for module in (package / folder).glob("*.py")}
        if folder.parts and not names & stems:
            yield str(path.relative_to(test_tree))
