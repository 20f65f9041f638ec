"""Inputs of decode attention's cases fit the reference; the library gets views of the pool."""

import sys
from types import ModuleType

import torch

from headrace.bench.device.cases_decode_attention import CASES, DecodeShape, make_case
from headrace.bench.device.draws import Draws
from tests.support.device_cases import assert_draws_differ, assert_names_are_unique, run_reference

SHAPE = DecodeShape(
    num_rows=3, num_tokens=37, num_heads=4, num_kv_heads=2, block_size=16, head_dim=32
)
CASE = make_case(SHAPE)


def test_inputs_fit_the_reference():
    out = run_reference(CASES, CASE)
    assert out.shape == (3, 4, 32)
    assert torch.isfinite(out).all()


def test_rows_have_blocks_of_their_own():
    table = CASE.build(Draws("cpu", seed=0)).args[2]
    assert sorted(table.flatten().tolist()) == list(range(9))


def test_the_site_and_the_bytes_are_those_of_the_step():
    assert CASE.sizes["num_tokens"] == 3
    # 3 x 37 tokens of 2 heads, K and V, and 3 rows of 4 heads read and written.
    assert CASE.num_bytes == (2 * 3 * 37 * 2 + 2 * 3 * 4) * 32 * 2


def test_the_named_shapes_are_there():
    names = {case.name for case in CASES.cases}
    assert {"64x4096/h64-4/block64", "8x6144/h16-1/block128"} <= names
    assert len(names) == 10


def test_the_library_gets_one_query_a_row_and_views_of_the_pool(monkeypatch):
    asked = {}

    def library(q, k, v, **options):
        asked.update(options, q=q, k=k, v=v)

    front, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    cute.flash_attn_varlen_func = library
    monkeypatch.setitem(sys.modules, "flash_attn", front)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    inputs = CASE.build(Draws("cpu", seed=0))
    CASES.baselines[0].prepare(inputs)()
    q, pool, table, lens = inputs.args
    assert asked["q"] is q
    assert asked["k"].shape == asked["v"].shape == (9, 16, 2, 32)
    assert asked["v"].data_ptr() == pool[1].data_ptr()
    assert torch.equal(asked["k"][5, 3, 1], pool[0, 1, 5, 3])
    assert asked["cu_seqlens_q"].tolist() == [0, 1, 2, 3]
    assert (asked["page_table"] is table, asked["seqused_k"] is lens) == (True, True)
    assert asked["causal"]
    # More, or the library's own choice, fails on compute capability 9: its name says so.
    assert (asked["num_splits"], CASES.baselines[0].name) == (1, "flash_attention_4_one_split")


def test_draws_differ_and_names_do():
    assert_draws_differ(CASE)
    assert_draws_differ(CASE, 1)
    assert_names_are_unique(CASES)
