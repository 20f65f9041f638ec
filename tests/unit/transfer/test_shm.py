import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.core.errors import TransferError
from headrace.core.transport import CancelToken, Immediate
from headrace.transfer.segment import SEGMENT_DIR, sweep_segments
from headrace.transfer.shm import ShmTransport
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_world import KEY, ShmWorld, fragments, make_engine


def test_names_are_minted_per_generation_and_gone_after_close(tmp_path: Path) -> None:
    world = ShmWorld(tmp_path)
    (layout,) = split_layouts(1)
    names = []
    for generation in (1, 2):
        engine = make_engine(world, "decode.0", generation=generation)
        _, target = engine.allocate(layout)
        names.append((target.name, target.doorbell))
        assert (SEGMENT_DIR / target.name).exists()
        assert f".{generation}." in target.name
        engine.close()
    assert len(set(names)) == 2
    assert sweep_segments(world.deployment_id) == []
    assert os.listdir(tmp_path) == []


def test_a_region_of_another_deployment_or_folder_is_refused(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    ours, theirs = (
        ShmTransport(
            deployment_id=f"test-{folder.name}-{tmp_path.name}",
            owner="decode.0",
            rank=0,
            generation=1,
            run_dir=folder,
            key=KEY,
        )
        for folder in (here, there)
    )
    ours.open()
    theirs.open()
    _, target = theirs.allocate(split_layouts(1)[0])

    def write() -> None:
        ours.write(
            memoryview(np.ones(8, np.uint8)),
            target,
            fragments((0, 0, 8)),
            immediate=Immediate(0, 0, 1, 0, 8),
            token=CancelToken(),
        )

    with pytest.raises(TransferError, match=r"expected an shm region of deployment test-here"):
        write()
    ours._deployment_id = theirs._deployment_id
    with pytest.raises(TransferError, match=r"doorbell .*there.*expected one in .*here"):
        write()
    ours.close()
    theirs.close()


def test_forgetting_a_region_unmaps_it_after_the_writes_before(tmp_path: Path) -> None:
    world = ShmWorld(tmp_path)
    sender = make_engine(world, "prefill.0")
    receiver = make_engine(world, "decode.0")
    _, target = receiver.allocate(split_layouts(1)[0])
    source = sender.register(memoryview(np.ones(64, np.uint8)))
    before = sender.write(source, target, fragments((0, 0, 8)), imm=0)
    sender.forget(target)
    after = sender.write(source, target, fragments((0, 0, 8)), imm=0)
    world.settle(sender, [before, after])
    assert (before.error(), after.error()) == ("", "")  # mapped anew
    receiver.close()
    sender.forget(target)
    gone = sender.write(source, target, fragments((0, 0, 8)), imm=0)
    world.settle(sender, [gone])
    assert "owner is gone" in gone.error()
    sender.close()


@pytest.mark.parametrize("changes", [{"generation": -1}, {"generation": 2**64}, {"tail": "\0"}])
def test_a_descriptor_that_nobody_could_ring_is_refused_and_the_worker_lives(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    world = ShmWorld(tmp_path)
    sender = make_engine(world, "prefill.0")
    receiver = make_engine(world, "decode.0")
    _, target = receiver.allocate(split_layouts(1)[0])
    source = sender.register(memoryview(np.ones(8, np.uint8)))
    doorbell = target.doorbell + changes.pop("tail", "")
    strange = msgspec.structs.replace(target, doorbell=doorbell, **changes)
    with pytest.raises(TransferError, match=r"generation|expected one in"):
        sender.write(source, strange, fragments((0, 0, 8)), imm=0)
    world.settle(sender, [sender.write(source, target, fragments((0, 0, 8)), imm=1)])
    sender.close()
    receiver.close()
