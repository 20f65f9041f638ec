"""The torch-free rooms import on a machine without torch.

The import contracts prove this from the source text. This test proves it by doing it, which also
covers imports that static analysis cannot see (``importlib``, lazy attributes of other packages).
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"

# Each blocked name is made unimportable before anything of ours loads.
IMPORT_ALL = """
import importlib, pkgutil, sys
blocked = {"torch", "triton", "cutlass"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is not allowed here")
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
package = importlib.import_module(sys.argv[2])
for info in pkgutil.walk_packages(getattr(package, "__path__", []), f"{package.__name__}."):
    if not info.name.endswith(".__main__"):
        importlib.import_module(info.name)
"""


def torch_free_modules() -> list[str]:
    """The rooms named by the contract, and the config modules through which they are composed."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if c["type"] == "forbidden"]
    named = [m.replace("*.", "headrace.") for m in contract["source_modules"]]
    return [*named, "headrace.engine.config", "headrace.deployment"]


def exists(module: str) -> bool:
    path = SRC.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def import_without_torch(module: str, *, src: Path = SRC) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_ALL, str(src), module]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", [m for m in torch_free_modules() if exists(m)])
def test_imports_with_torch_blocked(module: str) -> None:
    result = import_without_torch(module)
    assert result.returncode == 0, result.stderr


def test_the_block_is_felt(tmp_path: Path) -> None:
    package = tmp_path / "guilty"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "deep.py").write_text("import torch\n")
    result = import_without_torch("guilty", src=tmp_path)
    assert result.returncode != 0
    assert "torch is not allowed here" in result.stderr
