"""Experts: a grouped MLP over the rows that each expert gets, ending in canonical partials."""

from headrace.kernels.moe.reference import ExpertWeights, expert_partials, pack_experts

__all__ = ["ExpertWeights", "expert_partials", "pack_experts"]
