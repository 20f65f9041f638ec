"""The wrapper hands the library views of the pool and what else it asks for."""

import sys
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import Tensor

from headrace.kernels.attention import prefill_reference
from tests.support.attention_shapes import Heads, make_cache, make_queries, query_starts

MODULE = "headrace.kernels.attention.flash4"
HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)


def _library(q_THD: Tensor, k_NSGD: Tensor, v_NSGD: Tensor, **options: object) -> tuple:
    """Do what the library does, by the reference, for the options that the wrapper must pass."""
    assert options.pop("causal") is True
    assert options.pop("num_splits") == 1
    assert k_NSGD.untyped_storage().data_ptr() == v_NSGD.untyped_storage().data_ptr()
    pool_2GNSD = torch.stack((k_NSGD, v_NSGD)).permute(0, 3, 1, 2, 4)
    result_THD = prefill_reference.paged_prefill_attention(
        q_THD,
        pool_2GNSD,
        options.pop("page_table"),
        options.pop("cu_seqlens_q"),
        options.pop("seqused_k"),
        scale=options.pop("softmax_scale"),
        max_query_len=options.pop("max_seqlen_q"),
    )
    assert not options
    return result_THD, None


def test_the_library_gets_the_pool_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    front, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    cute.flash_attn_varlen_func = _library
    monkeypatch.setitem(sys.modules, "flash_attn", front)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    flash4 = import_module(MODULE)
    monkeypatch.delitem(sys.modules, MODULE)

    cache = make_cache([20, 33], HEADS, dtype=torch.float32)
    q_THD = make_queries(25, HEADS, dtype=torch.float32)
    arguments = (
        q_THD,
        cache.pool_2GNSD,
        cache.block_table_BP,
        query_starts((20, 5)),
        cache.seq_lens_B,
    )
    expected = prefill_reference.paged_prefill_attention(
        *arguments, scale=HEADS.scale, max_query_len=20
    )
    out_THD = torch.empty_like(q_THD)
    given = flash4.paged_prefill_attention(
        *arguments, scale=HEADS.scale, max_query_len=20, out_THD=out_THD
    )
    assert given is out_THD
    assert torch.equal(given, expected)
    fresh = flash4.paged_prefill_attention(*arguments, scale=HEADS.scale, max_query_len=20)
    assert torch.equal(fresh, expected)
