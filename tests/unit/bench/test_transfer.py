"""Both sides of a pair move the same writes, and a row compares them."""

import numpy as np
import pytest

from headrace.bench import transfer
from headrace.bench.transfer import cases, describe, measure_case, paged_writes
from headrace.bench.transfer_peers import LAYOUT


class Fixed:
    """A side that takes a set time a write."""

    def __init__(self, write_s: float) -> None:
        self.calls = 0
        self._write_s = write_s

    def time(self, writes) -> float:
        self.calls += 1
        return self._write_s * len(writes)

    def close(self) -> None:
        raise AssertionError("it is not this test's to close")


def test_every_case_stays_inside_the_pool():
    names = []
    for name, writes in cases():
        names.append(name)
        for write in writes:
            for offsets in (write.source_offsets, write.target_offsets):
                assert (offsets >= 0).all()
                assert (offsets + write.num_bytes <= LAYOUT.num_bytes).all()
    assert names == ["4KiB", "64KiB", "1MiB", "4MiB", "16MiB", "64MiB", "article"]


def test_a_paged_write_is_the_articles_page():
    for write in paged_writes():
        assert len(write.num_bytes) == 512
        assert set(write.num_bytes.tolist()) == {32 << 10}
        assert len(np.unique(write.target_offsets)) == 512


def test_sides_alternate_and_the_first_pair_does_not_count():
    ours, theirs = Fixed(2e-6), Fixed(1e-6)
    writes = paged_writes()
    times = measure_case(ours, theirs, writes, repeats=3)
    assert (ours.calls, theirs.calls) == (4, 4)
    row = describe("shm", "article", 16 << 20, times)
    assert row["ratio"] == 0.5
    assert (row["p50_us"], row["floor_us"]) == (2.0, 1.0)
    assert row["baselines"]["memcpy"] == pytest.approx(row["value"] * 2, rel=1e-3)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_real_pairs_move_bytes(transport, monkeypatch):
    monkeypatch.setattr(transfer, "SIZES", (64 << 10,))
    monkeypatch.setattr(transfer, "RUN_BYTES", 1 << 20)
    monkeypatch.setattr(transfer, "ARTICLE_ATOMS", 16)
    rows = list(transfer.measure(transport, repeats=1))
    assert [row["case"] for row in rows] == [f"{transport}/64KiB", f"{transport}/article"]
    assert all(row["ratio"] > 0 and row["bytes"] > 0 for row in rows)
