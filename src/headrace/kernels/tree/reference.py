"""Plain-torch tree sum.

Shape letters: S = leaves; the other axes are the caller's.
"""

from __future__ import annotations

from torch import Tensor


def tree_sum(leaves: Tensor, dim: int = 0) -> Tensor:
    """Add the leaves along one axis in a fixed tree.

    With S = 2^a * m leaves (m odd), each run of m leaves is folded in order, then neighbours are
    added pairwise, a times. A contiguous run of S / 2^b leaves (b <= a) is therefore a subtree: its
    own ``tree_sum`` is a node of the whole tree, whoever computes it.

    Args:
        leaves: fp32 partials, S >= 1 along ``dim``; not modified.
        dim: Axis to sum, counted from the front.

    Returns:
        The sum, ``dim`` removed. May share memory with ``leaves`` when S is 1.

    Guarantees:
        ``tree_sum(x) == tree_sum(stack([tree_sum(part) for part in x.chunk(2**b)]))``, bit for bit.

    Cost:
        S - 1 additions per element in a + m - 1 calls; no host sync.
    """
    size = leaves.shape[dim]
    if size == 1:
        return leaves.select(dim, 0)
    before, after = leaves.shape[:dim], leaves.shape[dim + 1 :]
    width = size & -size
    run = size // width
    if run > 1:
        total, *others = leaves.reshape(*before, width, run, *after).unbind(dim + 1)
        leaves = sum(others, total)
    while width > 1:
        width //= 2
        left, right = leaves.reshape(*before, width, 2, *after).unbind(dim + 1)
        leaves = left + right
    return leaves.reshape(*before, *after)
