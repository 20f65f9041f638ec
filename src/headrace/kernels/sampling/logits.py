"""What happens to logits before a token is drawn: bias, then penalties.

Shape letters in this file:
    B = rows of the batch    V = vocabulary    R = penalised rows
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sampling.batch import SamplingBatch


def finite_rows(logits_BV: Tensor) -> Tensor:
    """Return bool ``[B]``: rows without NaN and infinities."""
    # The sum of a row that holds either is not finite. That of a sound one almost always is, and
    # is the cheapest pass there is; where it overflowed, the extremes decide.
    sound_B = torch.isfinite(logits_BV.sum(-1))
    if bool(sound_B.all()):
        return sound_B
    lowest_B, highest_B = torch.aminmax(logits_BV, dim=-1)
    return torch.isfinite(lowest_B) & torch.isfinite(highest_B)


def adjust_logits(logits_BV: Tensor, batch: SamplingBatch) -> Tensor:
    """Apply logit bias, then repetition, frequency and presence penalties.

    Repetition divides positive and multiplies negative logits of tokens in prompt or output;
    frequency and presence are taken off tokens in the output, as OpenAI defines them.

    Args:
        logits_BV: fp32. Not modified.
        batch: Settings; counts of penalised rows are read now.

    Returns:
        ``logits_BV`` itself where no row asks for anything, otherwise a new tensor.
    """
    if not len(batch.bias_rows_N) and not len(batch.penalised_R):
        return logits_BV
    logits_BV = logits_BV.clone()
    if len(batch.bias_rows_N):
        # A row's bias ids are the keys of a dict, so no pair comes twice and order is no matter.
        logits_BV[batch.bias_rows_N, batch.bias_tokens_N] += batch.bias_values_N
    if len(batch.penalised_R):
        _penalise(logits_BV, batch)
    return logits_BV


def _penalise(logits_BV: Tensor, batch: SamplingBatch) -> None:
    rows_R = batch.penalised_R
    counts = [batch.rows[i].counts for i in rows_R.tolist()]
    output_RV = torch.stack([c.output_V for c in counts if c is not None])
    prompt_RV = torch.stack([c.prompt_V for c in counts if c is not None])
    x_RV = logits_BV[rows_R]
    is_output_RV = output_RV > 0
    repetition_R1 = batch.repetition_B[rows_R, None]
    scaled_RV = torch.where(x_RV > 0, x_RV / repetition_R1, x_RV * repetition_R1)
    x_RV = torch.where(is_output_RV | prompt_RV, scaled_RV, x_RV)
    x_RV = x_RV - batch.frequency_B[rows_R, None] * output_RV
    logits_BV[rows_R] = x_RV - batch.presence_B[rows_R, None] * is_output_RV
