"""Adjusted logits inside a kernel have the bits of the CPU's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from headrace.kernels.sampling.logits import adjust_logits
from headrace.kernels.sampling.triton_row import adjust
from tests.support.kernels_sampling import Case

OPTIONS = (
    {},
    {"presence_penalty": 0.3, "frequency_penalty": -0.7, "repetition_penalty": 1.7},
    {"logit_bias": {0: -3.3, 127: 1.1, 128: 2.2, 255: 0.1}, "repetition_penalty": 0.3},
    {"logit_bias": {4: 100.0}, "frequency_penalty": 0.1},
)


@triton.jit
def _adjusted(logits, ints, floats, seen, bias_tokens, bias_values, out, V,
              MAX_BIAS: tl.constexpr, N: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    first = tl.program_id(1) * N
    ids = first + tl.arange(0, N)
    is_token = ids < V
    x = tl.load(logits + row * V + ids, mask=is_token, other=0.0)
    x = adjust(x, ids, is_token, ints + row * 16, floats + row * 16, seen,
               bias_tokens + row * MAX_BIAS, bias_values + row * MAX_BIAS, first, first + N, V,
               MAX_BIAS=MAX_BIAS)  # fmt: skip
    tl.store(out + row * V + ids, x, mask=is_token)


def test_bias_and_penalties_are_those_of_the_cpu() -> None:
    case = Case.of(OPTIONS, vocab_size=300)
    logits_BV, batch = case.logits(), case.on_device()
    out_BV = torch.empty_like(logits_BV)
    words_BW = batch.settings_BW
    _adjusted[(4, 3)](
        logits_BV,
        words_BW,
        words_BW.view(torch.float64),
        batch.seen.seen_PV,
        batch.bias_tokens_BM,
        batch.bias_values_BM,
        out_BV,
        300,
        MAX_BIAS=batch.bias_tokens_BM.shape[1],
        N=128,
    )
    assert torch.equal(out_BV, adjust_logits(logits_BV, case.on_cpu()))
