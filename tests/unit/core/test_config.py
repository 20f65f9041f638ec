"""Unknown keys never pass in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct

from headrace.core.config import build, load_toml, suggest
from headrace.core.errors import ConfigError
from headrace.core.launch import EngineConfig


class Outer(Struct, frozen=True, kw_only=True):
    name: str = ""
    engine: EngineConfig = EngineConfig()
    spare: EngineConfig | None = None


def test_known_keys_build_the_struct() -> None:
    built = build(Outer, {"name": "x", "engine": {"block_size": 32}}, where="test")
    assert built == Outer(name="x", engine=EngineConfig(block_size=32))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nmae": "x"}, r"here: unknown key 'nmae'; did you mean 'name'\?"),
        ({"engine": {"blok_size": 1}}, r"here\.engine: unknown key 'blok_size'.*'block_size'"),
        ({"spare": {"blok_size": 1}}, r"here\.spare: unknown key 'blok_size'.*'block_size'"),
        ({"engine": {"block_size": "x"}}, "here: Expected `int`"),
        ({"engine": {"dtype": "int7"}}, "expected auto, float32 or bfloat16"),
    ],
)
def test_bad_keys_and_values_are_named(data: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Outer, data, where="here")


def test_far_off_keys_list_what_is_known() -> None:
    assert suggest("zzz", ["b", "a"]) == "known keys: a, b"


def test_toml_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_toml(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML"):
        load_toml(bad)
    bad.write_text("a = 1")
    assert load_toml(bad) == {"a": 1}


def test_what_is_no_toml_file_at_all_is_refused_like_bad_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_toml(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"a = '\xff\xfe'")
    with pytest.raises(ConfigError, match=r"binary\.toml: not valid TOML"):
        load_toml(binary)
