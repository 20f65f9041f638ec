"""Who may map a segment, and how the death of a rank shows in it."""

import subprocess
import sys

import pytest

from headrace.comm import segment as seg
from headrace.comm.patience import Patience
from headrace.core.errors import ReplicaError
from tests.support.comm_ranks import segment_name

SIZE = 2


@pytest.fixture
def name():
    name = segment_name()
    yield name
    seg.unlink(name)


@pytest.fixture
def made(name):
    segment = seg.create(name, size=SIZE, generation=7, mailbox_bytes=128)
    yield segment
    segment.close()


def join(name, *, generation=7, size=SIZE, timeout_s=60.0):
    return seg.join(name, size=size, generation=generation, patience=Patience(timeout_s))


def test_a_joined_mapping_sees_the_makers_words(name, made):
    joined = join(name)
    made.words[made.lines[1] + seg.WORD] = 2**64 - 1
    assert joined.words[joined.lines[1] + seg.WORD] == 2**64 - 1
    assert joined.mailbox_bytes == 128
    joined.close()


def test_nothing_in_a_segment_overlaps(made):
    line_bytes = range(made.lines[0] * 8, made.lines[-1] * 8 + 128)
    start = made.data[0][0] - made.counts[0][0] * 8 - 64
    areas = [line_bytes]
    for parity in (0, 1):
        for rank in range(SIZE):
            areas.append(range(made.counts[parity][rank] * 8, made.counts[parity][rank] * 8 + 64))
            data = made.data[parity][rank] - start
            areas.append(range(data, data + made.mailbox_bytes))
    areas.sort(key=lambda area: area.start)
    assert all(a.stop <= b.start for a, b in zip(areas, areas[1:], strict=False))
    assert areas[-1].stop <= made.words.nbytes


def test_lines_of_two_ranks_are_two_cache_lines_apart(made):
    assert (made.lines[1] - made.lines[0]) * 8 == 128


def test_a_name_in_use_is_refused(name, made):
    with pytest.raises(ReplicaError, match="exists already: expected a fresh name"):
        seg.create(name, size=SIZE, generation=8, mailbox_bytes=128)
    join(name).close()


@pytest.mark.parametrize("wrong", [{"generation": 8}, {"size": 3}])
def test_a_stale_segment_is_refused(name, made, wrong):
    with pytest.raises(ReplicaError, match="is stale"):
        join(name, **wrong)


def test_a_segment_that_never_appears_is_named(name):
    with pytest.raises(ReplicaError, match=f"rank 0 did not make segment {name}"):
        join(name, timeout_s=0.0)


def test_a_half_made_segment_counts_as_absent(name):
    (seg.FOLDER / name).write_bytes(bytes(4096))
    with pytest.raises(ReplicaError, match="did not make"):
        join(name, timeout_s=0.0)


def test_too_little_memory_is_one_clear_line_and_leaves_nothing(name):
    with pytest.raises(ReplicaError, match="no room for"):
        seg.create(name, size=SIZE, generation=7, mailbox_bytes=1 << 50)
    assert not (seg.FOLDER / name).exists()


def test_a_rank_joins_once(name, made):
    joined = join(name)
    made.take_place(1)
    with pytest.raises(ReplicaError, match="rank 1 is already in the group"):
        joined.take_place(1)
    joined.close()


def test_presence_shows_from_joining_to_unmapping(name, made):
    joined = join(name)
    assert not made.is_gone(1)
    joined.take_place(1)
    assert not made.is_gone(1)
    joined.close()
    joined.close()
    assert made.is_gone(1)


def test_a_killed_process_shows_as_gone(name, made):
    code = f"""
import os, signal
from headrace.comm import segment as seg
from headrace.comm.patience import Patience
segment = seg.join({name!r}, size=2, generation=7, patience=Patience(60))
segment.take_place(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)})
    assert ended.returncode == -9
    assert made.words[made.lines[1] + seg.STATE] == seg.JOINED
    assert made.is_gone(1)
