"""Paged attention: writing KV by slots, planning a batch once, attending layer after layer."""

from headrace.kernels.attention.plan import AttentionPlan, AttentionShape, QueryRun, plan_attention
from headrace.kernels.attention.pool import view_kv_pool, write_kv
from headrace.kernels.attention.reference import paged_attention

__all__ = [
    "AttentionPlan",
    "AttentionShape",
    "QueryRun",
    "paged_attention",
    "plan_attention",
    "view_kv_pool",
    "write_kv",
]
