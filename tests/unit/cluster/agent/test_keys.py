"""The shared secret: its owner's alone, never overwritten, never used for two purposes."""

from pathlib import Path

import pytest

from headrace.cluster.agent.keys import SECRET_BYTES, derive, read_key, write_new_key
from headrace.core.errors import ConfigError


def test_a_new_key_is_read_back_and_is_its_owners_alone(tmp_path: Path) -> None:
    for name in "ab":
        write_new_key(tmp_path / name)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert len(read_key(tmp_path / "a")) == SECRET_BYTES
    assert read_key(tmp_path / "a") != read_key(tmp_path / "b")


def test_an_old_key_is_not_overwritten(tmp_path: Path) -> None:
    write_new_key(tmp_path / "a")
    secret = read_key(tmp_path / "a")
    with pytest.raises(ConfigError, match="exists already; delete it first"):
        write_new_key(tmp_path / "a")
    assert read_key(tmp_path / "a") == secret


def test_a_key_cannot_be_written_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_new_key(tmp_path / "none" / "a")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_have_rights_to_is_refused(tmp_path: Path, mode: int) -> None:
    write_new_key(tmp_path / "a")
    (tmp_path / "a").chmod(mode)
    with pytest.raises(ConfigError, match=f"others .* have rights to it .*0{mode:o}.*chmod 600"):
        read_key(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "00" * 31, "00" * 33, "xy" * 32, "\xff" * 64])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text, encoding="latin-1")
    (tmp_path / "a").chmod(0o600)
    with pytest.raises(ConfigError, match="expected 64 hexadecimal digits"):
        read_key(tmp_path / "a")


def test_an_absent_key_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file.*headrace agent --new-key FILE"):
        read_key(tmp_path / "none")


def test_keys_of_two_purposes_or_two_times_differ() -> None:
    keys = {
        derive(bytes(32), purpose, fresh)
        for purpose in (b"deployment", b"to-agent")
        for fresh in (b"1" * 32, b"2" * 32)
    }
    assert len(keys) == 4
