"""Experts: a grouped MLP over the rows that each expert gets, ending in canonical partials."""

from headrace.kernels.moe.binding import Experts, bind_experts
from headrace.kernels.moe.grouping import local_id_table
from headrace.kernels.moe.leaves import Placement
from headrace.kernels.moe.packed import PackedExperts, pack_experts_half
from headrace.kernels.moe.reference import ExpertWeights, expert_partials, pack_experts

__all__ = [
    "ExpertWeights",
    "Experts",
    "PackedExperts",
    "Placement",
    "bind_experts",
    "expert_partials",
    "local_id_table",
    "pack_experts",
    "pack_experts_half",
]
