"""Attention variants decline in words what they cannot run, and the best one left is bound."""

from typing import Any

import pytest

from headrace.kernels.attention import decode_reference, prefill_reference, triton_decode
from headrace.kernels.attention.family import DECODE_ATTENTION, PREFILL_ATTENTION
from headrace.kernels.catalogue import Site, bind, choose

SIZES = {"head_dim": 128, "block_size": 64, "queries_per_kv": 8}
H200: dict[str, Any] = {
    "device": "cuda",
    "capability": (9, 0),
    "num_processors": 132,
    "dtype": "bfloat16",
    "libraries": frozenset({"triton", "flash_attn.cute"}),
    "sizes": SIZES,
}


def _site(**changes: Any) -> Site:
    return Site(**(H200 | changes))


def test_a_cpu_gets_the_references() -> None:
    assert bind(DECODE_ATTENTION, Site()) is decode_reference.paged_decode_attention
    assert bind(PREFILL_ATTENTION, Site()) is prefill_reference.paged_prefill_attention


def test_a_device_gets_the_best() -> None:
    assert bind(DECODE_ATTENTION, _site()) is triton_decode.paged_decode_attention_few_rows
    many = _site(sizes=SIZES | {"num_tokens": 64})
    assert bind(DECODE_ATTENTION, many) is triton_decode.paged_decode_attention
    assert choose(PREFILL_ATTENTION, _site()).variant.name == "flash_attention_4"


def test_without_the_library_prefill_is_triton() -> None:
    choice = choose(PREFILL_ATTENTION, _site(libraries=frozenset({"triton"})))
    assert choice.variant.name == "triton"
    assert "flash-attn-4" in choice.declined[0][1]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sizes": SIZES | {"head_dim": 96}}, "head_dim"),
        ({"sizes": SIZES | {"block_size": 24}}, "block size"),
        ({"sizes": SIZES | {"queries_per_kv": 128}}, "query heads"),
        ({"dtype": "float64"}, "float64"),
        ({"kv_dtype": "float16"}, "float16"),
        ({"kv_dtype": "float8_e4m3fn", "capability": (8, 0)}, "8.9"),
        ({"libraries": frozenset()}, "triton"),
    ],
)
def test_what_decode_declines(changes: dict[str, Any], word: str) -> None:
    choice = choose(DECODE_ATTENTION, _site(**changes))
    assert choice.variant.name == "reference"
    assert all(word in reason for _, reason in choice.declined)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sizes": SIZES | {"head_dim": 96}}, "head_dim"),
        ({"dtype": "float32"}, "float32"),
        ({"kv_dtype": "float16"}, "float16"),
        ({"capability": (7, 5)}, "capability"),
    ],
)
def test_what_prefill_declines(changes: dict[str, Any], word: str) -> None:
    choice = choose(PREFILL_ATTENTION, _site(**changes))
    assert choice.variant.name == "reference"
    assert all(word in reason for _, reason in choice.declined)


def test_an_eight_bit_pool_decodes_where_the_device_can_widen_it() -> None:
    assert (
        choose(DECODE_ATTENTION, _site(kv_dtype="float8_e4m3fn")).variant.name == "few_rows_triton"
    )
    # The library reads pools of the queries' dtype only.
    assert choose(PREFILL_ATTENTION, _site(kv_dtype="float8_e4m3fn")).variant.name == "triton"
