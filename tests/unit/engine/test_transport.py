from pathlib import Path

import msgspec
import pytest

from headrace.core.errors import ConfigError
from headrace.core.sharding import Role
from headrace.deployment import TRANSPORTS
from headrace.engine.transport import make_transport
from tests.support.engine_specs import make_spec
from tests.support.transfer_layouts import split_layouts


@pytest.mark.parametrize("name", TRANSPORTS)
def test_every_transport_of_a_deployment_can_be_made(name: str, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(make_spec("model", tmp_path, Role.DECODE), transport=name)
    transport = make_transport(spec)
    transport.open()
    region, descriptor = transport.allocate(split_layouts(1)[0])
    assert descriptor.transport == name
    assert (descriptor.rank, descriptor.generation) == (spec.rank, spec.generation)
    transport.close()
    region.close()
    assert list(tmp_path.iterdir()) == []


def test_tcp_listens_where_the_spec_says(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(
        make_spec("model", tmp_path, Role.DECODE), transport="tcp", host="127.0.0.2"
    )
    transport = make_transport(spec)
    transport.open()
    _, descriptor = transport.allocate(split_layouts(1)[0])
    assert descriptor.doorbell.startswith("tcp://127.0.0.2:")
    transport.close()


def test_an_unknown_transport_is_refused(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(make_spec("model", tmp_path, Role.DECODE), transport="pigeon")
    with pytest.raises(ConfigError, match="'pigeon': this build has shm and tcp"):
        make_transport(spec)
