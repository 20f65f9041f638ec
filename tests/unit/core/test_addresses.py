import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.addresses import is_loopback, parse_address
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10.0.0.2:7100", ("10.0.0.2", 7100)), ("gpu-2:0", ("gpu-2", 0)), ("h:65535", ("h", 65535))],
)
def test_a_host_and_a_port_are_told_apart(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text, where="--listen") == expected


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "h:", "h:65536", "h:-1", "h:1x", "[::1]:7", "h:²"]
)
def test_anything_else_is_one_line_that_shows_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^hosts\.b .*expected HOST:PORT .*10\.0\.0\.2:7100"):
        parse_address(text, where="hosts.b")


@given(st.text())
def test_noise_is_refused_or_parsed_but_never_a_crash(text: str) -> None:
    try:
        host, port = parse_address(text, where="x")
    except ConfigError:
        return
    assert host
    assert 0 <= port < 65536


def test_loopback_is_the_whole_network_of_127() -> None:
    assert [is_loopback(it) for it in ("127.0.0.1", "127.9.9.9", "10.0.0.1", "0.0.0.0")] == [
        True,
        True,
        False,
        False,
    ]
