"""``docs/metrics.md`` names every exported metric, its type and labels, and no other."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.chaos import WriteFaults
from headrace.core.codec import Codec
from headrace.core.messages import Heartbeat
from headrace.core.sharding import Role
from headrace.deployment import TRANSPORTS
from headrace.engine.build_decode import build_decode
from headrace.engine.build_prefill import build_prefill
from headrace.engine.kept import Kept
from headrace.engine.parts import open_parts
from headrace.serving.openai.exposition import render
from headrace.transfer.control import ControlSocket
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.engine_specs import Outbox, make_spec
from tests.support.serving_fakes import make_stack

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"
TIMEOUT_S = 20.0
Named = set[tuple[str, str, tuple[str, ...]]]


def first_beat(run_dir: Path, folder: Path, role: Role, *, transport: str) -> Heartbeat:
    """Return what a real rank of ``role`` says of itself when it begins."""
    build = build_prefill if role is Role.PREFILL else build_decode
    run_dir.mkdir()
    # With faults on purpose, so that what counts them is there.
    faults = WriteFaults(delay_s=0.001)
    spec = msgspec.structs.replace(
        make_spec(folder, run_dir, role), faults=faults, transport=transport
    )
    supervisor = ControlSocket(spec.supervisor, Codec(bytes(16)))
    supervisor.open()
    with ExitStack() as stack:
        stack.callback(supervisor.close)
        build(open_parts(spec, Outbox(), stack, Kept.of(spec)), stack)
        assert supervisor.wait(TIMEOUT_S)
        return next(one for one in supervisor.recv_all() if isinstance(one, Heartbeat))


def exported(text: str) -> Named:
    named: Named = set()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert family.samples, f"{name} has no sample: have the test touch it"
        named.add((name, family.type, tuple(sorted(labels))))
    return named


def documented() -> Named:
    rows = re.findall(
        r"^\| `(headrace_\w+)` \| (\w+) \| [^|]*\| ([^|]*)\|", PAGE.read_text(), re.MULTILINE
    )
    names = [name for name, _, _ in rows]
    assert len(set(names)) == len(names), "a name has two rows"
    return {
        (name, kind, tuple(sorted(filter(None, labels.strip().split(", ")))))
        for name, kind, labels in rows
    }


@pytest.fixture(scope="module")
def beats(tmp_path_factory: pytest.TempPathFactory) -> list[Heartbeat]:
    base = tmp_path_factory.mktemp("ranks")
    write_checkpoint(base / "model", TinyModel(num_layers=1), tokenizer=True)
    beats = []
    for role in (Role.PREFILL, Role.DECODE):
        by_transport = [
            first_beat(base / f"{role}-{transport}", base / "model", role, transport=transport)
            for transport in TRANSPORTS
        ]
        # A rank has one transport; this one counts what any of them would.
        counters = {name: n for beat in by_transport for name, n in beat.counters.items()}
        beats.append(msgspec.structs.replace(by_transport[0], counters=counters))
    return beats


async def test_the_page_names_every_metric_and_no_other(beats: list[Heartbeat]) -> None:
    stack = make_stack()
    for beat in beats:
        stack.registry.on_message(beat)
    await stack.chat()
    control = ControlSocket("ipc:///unused", Codec(bytes(16)))
    stack.front.metrics.further.append(
        lambda: {name.replace("_", "_edge_", 1): n for name, n in control.counters().items()}
    )
    shown = exported(render(stack.front.metrics, stack.registry, num_calls=0).decode())
    # What the fakes' own heartbeats count has a name of a real rank.
    assert shown == documented()


def test_the_page_is_linked_from_where_metrics_are_spoken_of() -> None:
    for page in ("http-api.md", "architecture.md"):
        assert "metrics.md" in (PAGE.parent / page).read_text()
