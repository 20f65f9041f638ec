"""What every rank opens, it closes; addresses of peers follow from its own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from headrace.core.chaos import WriteFaults
from headrace.core.launch import LaunchSpec
from headrace.core.messages import LoadProgress, Wake
from headrace.core.sharding import Role
from headrace.engine.build_decode import build_decode
from headrace.engine.build_prefill import build_prefill
from headrace.engine.kept import Kept
from headrace.engine.loops import DecodeLoop, PrefillLoop
from headrace.engine.parts import Parts, open_parts
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.engine_specs import Outbox, make_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    write_checkpoint(path, TinyModel(num_layers=2), tokenizer=True)
    return path


@pytest.mark.parametrize(
    ("role", "build", "kind"),
    [
        (Role.PREFILL, build_prefill, PrefillLoop),
        (Role.DECODE, build_decode, DecodeLoop),
        (Role.MONO, build_decode, DecodeLoop),
    ],
)
def test_what_a_rank_opens_is_gone_when_it_closes(
    folder: Path, tmp_path: Path, role: Role, build: object, kind: type
) -> None:
    spec = make_spec(folder, tmp_path, role)
    outbox = Outbox()
    with ExitStack() as stack:
        parts = open_parts(spec, outbox, stack, Kept.of(spec))
        loop = build(parts, stack)  # type: ignore[operator]
        assert isinstance(loop, kind)
        assert segments(spec) != []
        assert parts.layout.num_bytes <= 1 << 20
    assert segments(spec) == []
    assert list(tmp_path.iterdir()) == []
    assert all(isinstance(message, LoadProgress) for _, message in outbox.sent)


def test_a_rank_with_faults_counts_them_and_leaves_nothing_either(
    folder: Path, tmp_path: Path
) -> None:
    spec = msgspec.structs.replace(
        make_spec(folder, tmp_path, Role.DECODE), faults=WriteFaults(delay_s=0.01)
    )
    with ExitStack() as stack:
        parts = open_parts(spec, Outbox(), stack, Kept.of(spec))
        assert "headrace_transfer_chaos_held_writes_total" in parts.transfer.counters()
    assert segments(spec) == []
    assert list(tmp_path.iterdir()) == []


def segments(spec: LaunchSpec) -> list[str]:
    return [p.name for p in Path("/dev/shm").iterdir() if p.name.startswith(spec.deployment_id)]


def test_peers_are_all_other_ranks_of_the_replica(folder: Path, tmp_path: Path) -> None:
    spec = make_spec(folder, tmp_path, Role.PREFILL)
    with ExitStack() as stack:
        parts = open_parts(spec, Outbox(), stack, Kept.of(spec))
        outbox = Outbox()
        wide = Parts(
            **{
                name: getattr(parts, name)
                for name in Parts.__dataclass_fields__
                if name not in ("spec", "control")
            },
            spec=LaunchSpec.from_json(
                spec.to_json().replace(b'"sharding":{"tp":1', b'"sharding":{"tp":3')
            ),
            control=outbox,
        )
        wide.tell_peers(Wake(step=1))
    assert [address for address, _ in outbox.sent] == [
        f"ipc://{tmp_path}/prefill0.{rank}.1.ctl" for rank in (1, 2)
    ]
    assert wide.peer_address(0) == spec.address
    assert wide.info.address == outbox.address
