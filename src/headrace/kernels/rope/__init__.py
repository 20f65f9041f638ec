"""Rotary position embedding: plain and YaRN."""

from headrace.kernels.rope.reference import RopeTable, YarnScaling, apply_rope, rope_table

__all__ = ["RopeTable", "YarnScaling", "apply_rope", "rope_table"]
