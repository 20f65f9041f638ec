"""Canonical sum of fixed partials: the one order in which everything that is sharded is added."""

from headrace.kernels.tree.reference import tree_sum

__all__ = ["tree_sum"]
