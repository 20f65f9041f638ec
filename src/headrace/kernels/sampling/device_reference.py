"""Device sampling in plain torch: any device, no host sync; every row is sorted, so it is slow.

Shape letters in this file:
    B = rows    V = vocabulary, by id    K = vocabulary, best token first    M = biased tokens
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sampling import device_settings as fields
from headrace.kernels.sampling.device_batch import DeviceSampled, DeviceSamplingBatch
from headrace.kernels.sampling.device_seen import COUNT_MASK, in_prompt, output_counts
from headrace.kernels.sampling.device_settings import RowKind
from headrace.kernels.sampling.elementary import exp_nonpositive
from headrace.kernels.sampling.noise import GOLDEN, exponential_noise, mix64_tensor, to_int64
from headrace.kernels.sampling.order import top_tokens


def device_sample(
    logits_BV: Tensor, batch: DeviceSamplingBatch, *, out: DeviceSampled | None = None
) -> DeviceSampled:
    """See ``family.device_sample``: this is its plainest form."""
    num_rows = len(logits_BV)
    ints_BW = batch.settings_BW[:num_rows]
    floats_BW = ints_BW.view(torch.float64)
    x_BV = logits_BV.to(torch.float32)
    is_row_B = ints_BW[:, fields.KIND] != RowKind.PADDING
    ok_B = torch.isfinite(x_BV).all(dim=-1) | ~is_row_B
    x_BV = torch.where((ok_B & is_row_B)[:, None], x_BV, 0.0)
    tokens_B = _choose(_adjust(x_BV, batch), ints_BW, floats_BW)
    drawn_B = ok_B & is_row_B
    tokens_B = torch.where(drawn_B, tokens_B, 0)
    chosen_B = x_BV.gather(1, tokens_B[:, None])[:, 0].to(torch.float64)
    logprob_B = chosen_B - torch.logsumexp(x_BV.to(torch.float64), dim=-1)
    if out is None:
        out = DeviceSampled.empty(num_rows, device=logits_BV.device)
    out.token_ids_B.copy_(tokens_B)
    out.ok_B.copy_(ok_B)
    out.logprob_B.copy_(torch.where(drawn_B, logprob_B, 0.0))
    ints_BW[:, fields.POSITION] += drawn_B
    _count(tokens_B, drawn_B, batch)
    return out


def _adjust(x_BV: Tensor, batch: DeviceSamplingBatch) -> Tensor:
    """Apply logit bias, then the penalties; see ``logits.adjust_logits``."""
    ints_BW = batch.settings_BW[: len(x_BV)]
    floats_BW = ints_BW.view(torch.float64).to(torch.float32)
    place_M = torch.arange(batch.bias_tokens_BM.shape[1], device=x_BV.device)
    is_bias_BM = place_M < ints_BW[:, fields.NUM_BIAS, None]
    # Unused places add nothing to token 0.
    tokens_BM = torch.where(is_bias_BM, batch.bias_tokens_BM[: len(x_BV)], 0).to(torch.int64)
    values_BM = torch.where(is_bias_BM, batch.bias_values_BM[: len(x_BV)], 0.0)
    x_BV = x_BV.scatter_add(1, tokens_BM, values_BM)
    slots_B = ints_BW[:, fields.SLOT]
    is_counted_B1 = (slots_B >= 0)[:, None] & (ints_BW[:, fields.KIND] > 0)[:, None]
    seen_BV = batch.seen.seen_PV[slots_B.clamp(min=0)]
    output_BV = output_counts(seen_BV)
    is_output_BV = output_BV > 0
    repetition_B1 = floats_BW[:, fields.REPETITION, None]
    scaled_BV = torch.where(x_BV > 0, x_BV / repetition_B1, x_BV * repetition_B1)
    y_BV = torch.where(is_output_BV | in_prompt(seen_BV), scaled_BV, x_BV)
    y_BV = y_BV - floats_BW[:, fields.FREQUENCY, None] * output_BV
    y_BV = y_BV - floats_BW[:, fields.PRESENCE, None] * is_output_BV
    return torch.where(is_counted_B1, y_BV, x_BV)


def _choose(x_BV: Tensor, ints_BW: Tensor, floats_BW: Tensor) -> Tensor:
    ids_BK = top_tokens(x_BV, x_BV.shape[1])
    x_BK = x_BV.gather(1, ids_BK).to(torch.float64)
    temperature_B1 = floats_BW[:, fields.TEMPERATURE, None]
    # Padding is a row of zeros, and nothing may be divided by its temperature.
    temperature_B1 = torch.where(temperature_B1 > 0.0, temperature_B1, 1.0)
    weights_BK = exp_nonpositive((x_BK - x_BK[:, :1]) / temperature_B1)
    keep_BK = _prefix(weights_BK, ints_BW, floats_BW)
    keep_BK &= weights_BK >= floats_BW[:, fields.MIN_P, None]
    steps_B = (ints_BW[:, fields.POSITION] + 1) * to_int64(GOLDEN)
    keys_B = mix64_tensor(ints_BW[:, fields.SEED] + steps_B)
    scores_BK = torch.where(keep_BK, weights_BK / exponential_noise(keys_B, ids_BK), -1.0)
    drawn_B1 = ids_BK.gather(1, scores_BK.argmax(dim=-1, keepdim=True))
    is_greedy_B = ints_BW[:, fields.KIND] == RowKind.GREEDY
    return torch.where(is_greedy_B, ids_BK[:, 0], drawn_B1[:, 0])


def _prefix(weights_BK: Tensor, ints_BW: Tensor, floats_BW: Tensor) -> Tensor:
    num_tokens = weights_BK.shape[1]
    place_K = torch.arange(num_tokens, device=weights_BK.device)
    top_k_B1 = ints_BW[:, fields.TOP_K, None]
    limit_B1 = torch.where(top_k_B1 > 0, top_k_B1, num_tokens)
    mass_BK = weights_BK.cumsum(dim=-1)
    wanted_B1 = mass_BK.gather(1, limit_B1 - 1) * floats_BW[:, fields.TOP_P, None]
    before_BK = mass_BK.roll(1, dims=-1)
    before_BK[:, 0] = 0.0
    return (place_K < limit_B1) & ((before_BK < wanted_B1) | (place_K == 0))


def _count(tokens_B: Tensor, drawn_B: Tensor, batch: DeviceSamplingBatch) -> None:
    ints_BW = batch.settings_BW[: len(tokens_B)]
    counted_B = drawn_B & (ints_BW[:, fields.SLOT] >= 0)
    slots_B = ints_BW[:, fields.SLOT].clamp(min=0)
    seen_PV = batch.seen.seen_PV
    is_full_B = output_counts(seen_PV[slots_B, tokens_B]) == COUNT_MASK
    steps_B = (counted_B & ~is_full_B).to(torch.int16)
    seen_PV.view(-1).index_add_(0, slots_B * seen_PV.shape[1] + tokens_B, steps_B)
