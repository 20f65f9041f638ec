"""A device backend owns its pool, and everything the rank does to blocks happens there."""

from dataclasses import replace

import pytest
import torch

from headrace.engine.backend import Row
from headrace.engine.device.backend import DeviceBackend
from tests.support.device_world import narrow_layout


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


def test_an_eight_bit_pool_is_half_a_half_and_close_to_the_models_own(
    backend: DeviceBackend, narrow_backend: DeviceBackend
) -> None:
    tokens = [(7 * index) % 250 for index in range(40)]
    rows = [
        Row(token_ids=tokens[start:stop], start=start, block_ids=[4, 2, 7], wants_logits=stop == 40)
        for start, stop in [(0, 17), (17, 33), (33, 40)]
    ]
    exact, narrow = ([each.run([row]) for row in rows][-1] for each in (backend, narrow_backend))
    assert {pool.dtype for pool in narrow_backend._pools} == {torch.float8_e4m3fn}
    assert {schema.item_bytes for schema in narrow_backend.schemas} == {1}
    difference = (narrow - exact).abs().max()
    assert 0 < difference < 0.1 * exact.abs().max()
    before = narrow_backend.kv_digests([4, 2, 7], 40)
    narrow_backend.copy_block(4, 5)
    assert narrow_backend.kv_digests([5, 2, 7], 40) == before
    narrow_backend.randomize_pool()
    assert narrow_backend.kv_digests([5, 2, 7], 40) != before


def test_scales_of_heads_cancel_but_for_rounding(narrow_backend: DeviceBackend) -> None:
    """Powers of two move no rounding, as long as nothing is subnormal or too large."""
    row = Row(token_ids=list(range(40)), start=0, block_ids=[4, 2, 7], wants_logits=True)
    plain = narrow_backend.run([row])
    heads = torch.tensor([2.0**-3, 2.0**-4, 2.0**-5, 2.0**-2])
    num_layers = len(narrow_backend.schemas)
    decoder = replace(narrow_backend.decoder, kv_scales=((heads, heads.flip(0)),) * num_layers)
    scaled_backend = DeviceBackend(decoder, narrow_backend.site)
    scaled_backend.allocate(narrow_layout(narrow_backend))
    scaled = scaled_backend.run([row])
    assert (scaled - plain).abs().max() < 0.05 * plain.abs().max()
    kept, scaled_kept = (each._pools[0].float() for each in (narrow_backend, scaled_backend))
    assert scaled_kept[0, 2].abs().max() > 16 * kept[0, 2].abs().max()


def test_a_closed_backend_holds_no_pool(backend: DeviceBackend) -> None:
    backend.close()
    assert backend._pools == []
    with pytest.raises(AssertionError, match="before allocate"):
        _write(backend, [1, 2])


def test_a_cpu_records_no_graphs(backend: DeviceBackend) -> None:
    step = backend.make_decode_step(max_rows=2, max_tokens=64)
    assert not step.captures
    assert step.token_ids_B.device == torch.device("cpu")
