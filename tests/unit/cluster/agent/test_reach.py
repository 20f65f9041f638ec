import pytest

from headrace.cluster.agent.reach import own_address, resolve
from headrace.core.errors import ConfigError


def test_a_name_becomes_an_address() -> None:
    assert resolve("localhost", where="hosts.b") == "127.0.0.1"
    assert resolve("10.0.0.2", where="hosts.b") == "10.0.0.2"


def test_a_name_that_nobody_knows_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"^hosts\.b: no address is known of 'no-host\.invalid'"):
        resolve("no-host.invalid", where="hosts.b")


def test_the_own_address_is_the_one_that_leads_to_the_peer() -> None:
    assert own_address("", {"b": "127.0.0.2"}).startswith("127.")
    assert own_address("127.0.0.5", {"b": "127.0.0.2"}) == "127.0.0.5"
    assert own_address("10.0.0.1", {"b": "10.0.0.2"}) == "10.0.0.1"


def test_loopback_is_refused_for_a_host_that_is_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"address 127\.0\.0\.1 is loopback, and host b \(10\."):
        own_address("127.0.0.1", {"a": "127.0.0.2", "b": "10.0.0.2"})
