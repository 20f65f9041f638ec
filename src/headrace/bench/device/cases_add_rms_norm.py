"""Cases of ``add_rms_norm``: the rows of decode steps and of a prompt.

Shape letters: T = rows   H = hidden width
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from headrace.bench.device.case import Baseline, Case, FamilyCases, Inputs
from headrace.bench.device.draws import Draws
from headrace.bench.device.shapes import MODELS, STEP_TOKENS, ModelShape
from headrace.bench.device.timing import Call
from headrace.kernels.catalogue import accept_all
from headrace.kernels.costs.norm import add_rms_norm_bytes
from headrace.kernels.norm.family import ADD_RMS_NORM

EPS = 1e-6


def make_case(shape: ModelShape, num_tokens: int) -> Case:
    """Add ``num_tokens`` rows to a model's stream, and norm it."""
    return Case(
        name=f"{shape.name}/t{num_tokens}",
        sizes=shape.site_sizes(num_tokens=num_tokens),
        num_bytes=add_rms_norm_bytes(num_tokens, width=shape.hidden),
        num_flops=0,
        build=partial(_build, shape.hidden, num_tokens),
    )


def _build(hidden: int, num_tokens: int, draws: Draws) -> Inputs:
    rows = (draws.normal(num_tokens, hidden), draws.normal(num_tokens, hidden))
    return Inputs(args=(*rows, draws.normal(hidden)), kwargs={"eps": EPS})


def _prepare_torch(inputs: Inputs) -> Call:
    x_TH, residual_TH, weight_H = inputs.args

    def call() -> tuple[Tensor, Tensor]:
        stream_TH = residual_TH + x_TH
        return F.rms_norm(stream_TH, weight_H.shape, weight_H, EPS), stream_TH

    return call


CASES = FamilyCases(
    family=ADD_RMS_NORM,
    cases=tuple(make_case(shape, tokens) for shape in MODELS for tokens in STEP_TOKENS),
    baselines=(Baseline(name="torch", decline=accept_all, prepare=_prepare_torch),),
    compared_with=("torch", "reference"),
)
