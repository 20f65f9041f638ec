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
    levels = (size & -size).bit_length() - 1
    run = size >> levels
    if run > 1:
        runs = leaves.unflatten(dim, (1 << levels, run))
        leaves = runs.select(dim + 1, 0)
        for index in range(1, run):
            leaves = leaves + runs.select(dim + 1, index)
    for _ in range(levels):
        pairs = leaves.unflatten(dim, (leaves.shape[dim] // 2, 2))
        leaves = pairs.select(dim + 1, 0) + pairs.select(dim + 1, 1)
    return leaves.squeeze(dim)
