import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import ConfigError, TransferError
from headrace.transfer.segment import (
    SEGMENT_DIR,
    attach_segment,
    create_segment,
    sweep_segments,
)


@pytest.fixture
def prefix(tmp_path: Path) -> Iterator[str]:
    prefix = f"test-{os.getpid()}-{tmp_path.name}"
    yield prefix
    assert sweep_segments(prefix) == [], "a test left segments behind"


def test_both_sides_see_the_same_bytes_until_the_owner_closes(prefix: str) -> None:
    owner = create_segment(f"{prefix}.a.1.0", 4096)
    peer = attach_segment(owner.name, 4096)
    peer.buffer[7] = 42
    assert owner.buffer[7] == 42
    assert (SEGMENT_DIR / owner.name).stat().st_mode & 0o777 == 0o600
    owner.close()
    assert not (SEGMENT_DIR / owner.name).exists()
    peer.buffer[7] = 43  # a mapping outlives the name: no crash in the peer
    peer.close()


def test_a_peer_never_unlinks(prefix: str) -> None:
    owner = create_segment(f"{prefix}.a.1.0", 4096)
    attach_segment(owner.name, 4096).close()
    assert (SEGMENT_DIR / owner.name).exists()
    owner.close()
    owner.close()


def test_closing_under_a_live_view_leaves_the_view_readable(prefix: str) -> None:
    owner = create_segment(f"{prefix}.a.1.0", 4096)
    view = np.frombuffer(owner.buffer, np.uint8)
    owner.close()
    assert view.sum() == 0
    assert not (SEGMENT_DIR / owner.name).exists()


def test_a_name_that_is_taken_is_refused(prefix: str) -> None:
    owner = create_segment(f"{prefix}.a.1.0", 4096)
    with pytest.raises(ConfigError, match="exists"):
        create_segment(owner.name, 4096)
    owner.close()


def test_a_region_larger_than_shared_memory_is_one_clear_line_and_leaves_nothing(
    prefix: str,
) -> None:
    free = os.statvfs(SEGMENT_DIR)
    too_much = (free.f_blocks + 1024) * free.f_frsize
    with pytest.raises(ConfigError, match=r"MiB free, the KV region needs \d+ MiB.*--shm-size"):
        create_segment(f"{prefix}.a.1.0", too_much)


@pytest.mark.parametrize("name", ["gone.1.0", "../etc/passwd", ".hidden"])
def test_what_is_not_a_segment_is_not_mapped(name: str) -> None:
    with pytest.raises(TransferError, match=r"segment"):
        attach_segment(name, 16)


def test_a_segment_shorter_than_described_is_not_mapped(prefix: str) -> None:
    owner = create_segment(f"{prefix}.a.1.0", 4096)
    with pytest.raises(TransferError, match=r"has 4096 bytes: expected 8192"):
        attach_segment(owner.name, 8192)
    owner.close()


def test_sweeping_takes_one_deployment_only(prefix: str) -> None:
    mine = [create_segment(f"{prefix}.a.{n}.0", 64) for n in range(2)]
    other = create_segment(f"{prefix}x.a.1.0", 64)
    assert sweep_segments(prefix) == [one.name for one in mine]
    assert (SEGMENT_DIR / other.name).exists()
    for one in (*mine, other):
        one.close()
