"""The size limits are found where they are broken, and only there."""

from pathlib import Path

import pytest

from tools.check_limits import Finding, check_file, main


def write(folder: Path, source: str, *, name: str = "module.py") -> Path:
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return path


def faults(path: Path) -> list[Finding]:
    return [f for f in check_file(path) if f.is_fault]


def function(num_lines: int, *, head: str = "def f():") -> str:
    return "\n".join([head, *["    x = 1"] * (num_lines - 1)]) + "\n"


def test_a_file_of_exactly_the_limit_passes_and_one_line_more_fails(tmp_path: Path) -> None:
    assert faults(write(tmp_path, "x = 1\n" * 400)) == []
    (fault,) = faults(write(tmp_path, "x = 1\n" * 401))
    assert "401 lines, limit 400" in fault.message


def test_a_function_of_exactly_the_limit_passes_and_one_line_more_fails(tmp_path: Path) -> None:
    assert faults(write(tmp_path, function(50))) == []
    (fault,) = faults(write(tmp_path, "\n\n" + function(51)))
    assert (fault.line, fault.message) == (3, "f has 51 lines without its docstring, limit 50")


def test_a_docstring_and_decorators_do_not_count(tmp_path: Path) -> None:
    docstring = '    """One.\n\n    Two.\n    """\n'
    head, _, rest = function(50, head="@a\n@b\nasync def f():").partition("f():\n")
    assert faults(write(tmp_path, f"{head}f():\n{docstring}{rest}")) == []


@pytest.mark.parametrize("decorator", ["triton.jit", "cute.kernel", "triton.jit(debug=True)"])
def test_a_kernel_has_more_room(tmp_path: Path, decorator: str) -> None:
    assert faults(write(tmp_path, function(200, head=f"@{decorator}\ndef f():")[:-1])) == []
    assert len(faults(write(tmp_path, function(210, head=f"@{decorator}\ndef f():")))) == 1


def test_methods_and_nested_functions_are_measured(tmp_path: Path) -> None:
    inner = "\n".join("    " + line for line in function(51).splitlines())
    assert len(faults(write(tmp_path, f"class C:\n{inner}\n"))) == 1
    assert len(faults(write(tmp_path, f"def outer():\n{inner}\n"))) == 2


def test_a_character_outside_ascii_is_named_with_its_escape(tmp_path: Path) -> None:
    (fault,) = faults(write(tmp_path, 'x = 1\ny = "\u00b5s"\n'))
    assert fault.line == 2
    assert r"'\xb5'" in fault.message


def test_tests_may_show_the_text_they_test(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    assert faults(write(folder, 'y = "\u00b5s"\n')) == []


def test_many_positional_arguments_only_warn(tmp_path: Path) -> None:
    (finding,) = check_file(write(tmp_path, "def f(self, a, b, c, d, *, e): ...\n"))
    assert not finding.is_fault
    assert "4 arguments by position" in finding.message
    assert check_file(write(tmp_path, "def f(cls, a, b, c, *, d, e): ...\n")) == []


def test_the_exit_status_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path, "def f(a, b, c, d): ...\n", name="good.py")
    assert main([str(good)]) == 0
    assert "warning" not in capsys.readouterr().out.splitlines()[0].split(",")[0]
    assert main([str(good), "--warnings"]) == 0
    assert "good.py:1: warning: f takes 4" in capsys.readouterr().out
    write(tmp_path, function(51), name="bad.py")
    assert main([str(tmp_path)]) == 1
    assert "bad.py:1: f has 51 lines" in capsys.readouterr().out


def test_this_repository_keeps_its_limits() -> None:
    assert main([]) == 0
