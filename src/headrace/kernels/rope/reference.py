"""Plain-torch rotary embedding in the halves style (dimension i turns with i + D/2).

Cosines come from a table over positions, not from the batch's own positions: a vectorised cosine
may differ in its last bit with its place in the tensor, a table entry cannot.

Shape letters: T = tokens   H = heads (queries and keys together)   D = head dimension
    P = positions of the table   F = D / 2 frequencies
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN's parameters; zeros mean "derive it".

    Attributes:
        factor: Ratio of the extended to the original context.
        original_max_positions: Context the model was pretrained at [tokens].
        attention_factor: Multiplier of cos and sin.
        beta_fast: Rotations above which a dimension keeps its frequency.
        beta_slow: Rotations below which a dimension is interpolated in full.
        mscale: Numerator weight of a derived attention factor.
        mscale_all_dim: Denominator weight of a derived attention factor.
        truncate: Round the corrected range to whole dimensions.
    """

    factor: float
    original_max_positions: int
    attention_factor: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True

    def amplitude(self) -> float:
        """Multiplier of cos and sin."""
        if self.attention_factor:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._log_scale(self.mscale) / self._log_scale(self.mscale_all_dim)
        return self._log_scale(1.0)

    def _log_scale(self, weight: float) -> float:
        return 1.0 if self.factor <= 1.0 else 0.1 * weight * math.log(self.factor) + 1.0


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of every position, in the model dtype.

    Attributes:
        cos_PF: Cosine of each position and frequency.
        sin_PF: Sine of each position and frequency.
    """

    cos_PF: Tensor
    sin_PF: Tensor

    def rows(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ``apply_rope`` needs for these positions, once for all layers.

        Args:
            positions_T: int64, each below P.

        Returns:
            ``cos_T1D`` and ``sin_T1D``, the sine's first half negated.
        """
        cos_TF, sin_TF = self.cos_PF[positions_T], self.sin_PF[positions_T]
        cos_TD = torch.cat((cos_TF, cos_TF), dim=-1)
        return cos_TD.unsqueeze(1), torch.cat((-sin_TF, sin_TF), dim=-1).unsqueeze(1)


def rope_table(
    head_dim: int,
    num_positions: int,
    *,
    theta: float,
    yarn: YarnScaling | None = None,
    dtype: torch.dtype = torch.float32,
) -> RopeTable:
    """Tabulate the rotation of every position.

    Args:
        head_dim: D, even.
        num_positions: P.
        theta: Base of the frequencies.
        yarn: Context extension; None for plain RoPE.
        dtype: Of the table, rounded once from fp32.

    Cost:
        P * D elements, computed once.
    """
    freqs_F = theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    inverse_F, amplitude = 1.0 / freqs_F, 1.0
    if yarn is not None:
        inverse_F = _yarn_frequencies(freqs_F, yarn, theta=theta)
        amplitude = yarn.amplitude()
    angles_PF = torch.arange(num_positions).float()[:, None] * inverse_F
    return RopeTable(
        (angles_PF.cos() * amplitude).to(dtype), (angles_PF.sin() * amplitude).to(dtype)
    )


def apply_rope(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Rotate queries or keys (or both, stacked along the heads).

    Args:
        x_THD: Heads after QK-norm. Not modified.
        cos_T1D: From ``RopeTable.rows``.
        sin_T1D: From ``RopeTable.rows``, its first half negated.

    Returns:
        x's shape and dtype.

    Numerics:
        Products and sum in x's dtype, each rounded, as the reference library does. Row-local.
    """
    return x_THD * cos_T1D + x_THD.roll(x_THD.shape[-1] // 2, dims=-1) * sin_T1D


def _yarn_frequencies(freqs_F: Tensor, yarn: YarnScaling, *, theta: float) -> Tensor:
    """Blend interpolated and original frequencies along YaRN's ramp (arXiv 2309.00071)."""
    num_freqs = freqs_F.shape[0]
    low = _ramp_dimension(yarn.beta_fast, yarn, theta=theta, head_dim=2 * num_freqs)
    high = _ramp_dimension(yarn.beta_slow, yarn, theta=theta, head_dim=2 * num_freqs)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * num_freqs - 1)
    # A ramp of no width would divide by zero.
    width = high - low if high != low else 0.001
    interpolated_F = ((torch.arange(num_freqs).float() - low) / width).clamp(0, 1)
    kept_F = 1 - interpolated_F
    return 1.0 / (yarn.factor * freqs_F) * (1 - kept_F) + 1.0 / freqs_F * kept_F


def _ramp_dimension(rotations: float, yarn: YarnScaling, *, theta: float, head_dim: int) -> float:
    """Dimension that turns ``rotations`` times over the original context."""
    turns = yarn.original_max_positions / (rotations * 2 * math.pi)
    return head_dim * math.log(turns) / (2 * math.log(theta))
