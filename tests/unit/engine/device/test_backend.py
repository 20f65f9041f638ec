"""A device backend owns its pool, and everything the rank does to blocks happens there."""

import pytest
import torch

from headrace.engine.backend import Row
from headrace.engine.device.backend import DeviceBackend


def _write(backend: DeviceBackend, blocks: list[int], start: int = 0) -> None:
    tokens = [(7 * index) % 250 for index in range(20)]
    backend.run([Row(token_ids=tokens, start=start, block_ids=blocks, wants_logits=False)])


def test_a_region_is_refused(backend: DeviceBackend) -> None:
    assert backend.owns_memory
    with pytest.raises(AssertionError, match="its own pool"):
        backend.attach(memoryview(bytearray(8)), num_blocks=1, block_size=16)


def test_a_copied_block_holds_the_same_history(backend: DeviceBackend) -> None:
    _write(backend, [1, 2])
    backend.copy_block(1, 6)
    assert backend.kv_digests([6, 2], 20) == backend.kv_digests([1, 2], 20)
    assert backend.kv_digests([3, 2], 20) != backend.kv_digests([1, 2], 20)


def test_a_fresh_pool_is_finite_and_a_random_one_is_not_zero(backend: DeviceBackend) -> None:
    assert all((pool == 0).all() for pool in backend._pools)
    backend.randomize_pool()
    assert all(pool.isfinite().all() and pool.std() > 0.9 for pool in backend._pools)


def test_a_closed_backend_holds_no_pool(backend: DeviceBackend) -> None:
    backend.close()
    assert backend._pools == []
    with pytest.raises(AssertionError, match="before allocate"):
        _write(backend, [1, 2])


def test_a_cpu_records_no_graphs(backend: DeviceBackend) -> None:
    step = backend.make_decode_step(max_rows=2, max_tokens=64)
    assert not step.captures
    assert step.token_ids_B.device == torch.device("cpu")
