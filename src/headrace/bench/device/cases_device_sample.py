"""Cases of ``device_sample``: batches whose rows all draw in the same way, and a mixed one.

Shape letters: B = rows   V = vocabulary   K = tokens that are kept, best first
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headrace.bench.device.case import Baseline, Case, FamilyCases, Inputs
from headrace.bench.device.draws import Draws
from headrace.bench.device.shapes import QWEN3_30B_A3B
from headrace.bench.device.timing import Call
from headrace.core.requests import SamplingParams
from headrace.kernels.catalogue import accept_all
from headrace.kernels.costs.sampling import device_sample_bytes
from headrace.kernels.sampling.device_batch import DeviceSampled, DeviceSamplingBatch
from headrace.kernels.sampling.device_settings import KIND, DeviceRow, RowKind
from headrace.kernels.sampling.device_settings import TOP_K as TOP_K_WORD
from headrace.kernels.sampling.family import DEVICE_SAMPLE

# The recommended settings of the models, and what leaves one of them out.
TEMPERATURE, TOP_P, TOP_K = 0.6, 0.95, 20
KINDS: dict[str, tuple[SamplingParams, ...]] = {
    "greedy": (SamplingParams(max_tokens=1, temperature=0.0),),
    "plain": (SamplingParams(max_tokens=1, temperature=TEMPERATURE),),
    "top-k-top-p": (
        SamplingParams(max_tokens=1, temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P),
    ),
    "top-p": (SamplingParams(max_tokens=1, temperature=TEMPERATURE, top_p=TOP_P),),
}
KINDS["mixed"] = tuple(params for kind in KINDS.values() for params in kind)
ROWS = (1, 8, 32, 128, 256)
# Peaked enough that top-p leaves hundreds of tokens, not tens of thousands as a flat row would.
LOGIT_SCALE = 3.0
# A row of logits is 0.6 MB: so many sets exceed several times the L2 cache for one row too.
MAX_SETS = 512
# Of the reference: 90 were counted on a CPU, and a device's sort keeps a second copy.
REFERENCE_BYTES_PER_LOGIT = 120


def make_case(kind: str, num_rows: int, *, vocab_size: int = QWEN3_30B_A3B.vocab_size) -> Case:
    """Draw one token a row, each row by one of the kind's settings in turn."""
    return Case(
        name=f"{kind}/b{num_rows}",
        sizes={"vocab_size": vocab_size, "num_tokens": num_rows},
        num_bytes=device_sample_bytes(num_rows, vocab_size=vocab_size),
        num_flops=0,
        build=partial(_build, kind, num_rows, vocab_size=vocab_size),
        max_sets=MAX_SETS,
        reference_bytes=REFERENCE_BYTES_PER_LOGIT * num_rows * vocab_size,
    )


def _build(kind: str, num_rows: int, draws: Draws, *, vocab_size: int) -> Inputs:
    logits_BV = draws.normal(num_rows, vocab_size, scale=LOGIT_SCALE, dtype=torch.float32)
    batch = DeviceSamplingBatch.allocate(
        num_rows, vocab_size=vocab_size, device=draws.device, num_slots=1
    )
    settings = KINDS[kind]
    rows = [
        DeviceRow.of(settings[row % len(settings)], seed=row, vocab_size=vocab_size)
        for row in range(num_rows)
    ]
    batch.update(rows, positions=range(1000, 1000 + num_rows))
    out = DeviceSampled.empty(num_rows, device=draws.device)
    return Inputs(args=(logits_BV, batch), kwargs={"out": out})


def prepare_torch(inputs: Inputs) -> Call:
    """Make a call of what engines do with torch's operators: select or sort, cut, race.

    Rows of one kind take the cheapest operators that draw as they ask. These cannot skip rows, so
    a mixed batch takes the dearest way for all of them, whatever its rows ask for.
    """
    logits_BV, batch = inputs.args
    kinds = set(batch.settings_BW[:, KIND].tolist())
    if kinds == {RowKind.GREEDY}:
        return lambda: logits_BV.argmax(dim=-1)
    if kinds == {RowKind.PLAIN}:
        return lambda: _race(torch.softmax(logits_BV / TEMPERATURE, dim=-1))
    if set(batch.settings_BW[:, TOP_K_WORD].tolist()) == {TOP_K}:
        return lambda: _sample_best(*(logits_BV / TEMPERATURE).topk(TOP_K, dim=-1))
    return lambda: _sample_best(*(logits_BV / TEMPERATURE).sort(dim=-1, descending=True))


def _sample_best(values_BK: Tensor, ids_BK: Tensor) -> Tensor:
    """Draw from the shortest prefix that holds a share ``TOP_P`` of what is given."""
    weights_BK = torch.softmax(values_BK, dim=-1)
    is_dropped_BK = weights_BK.cumsum(dim=-1) - weights_BK > TOP_P
    winners_B = _race(weights_BK.masked_fill(is_dropped_BK, 0.0))
    return ids_BK.gather(1, winners_B[:, None])[:, 0]


def _race(weights_BV: Tensor) -> Tensor:
    """Draw by weights: the largest quotient of a weight and exponential noise."""
    return (weights_BV / torch.empty_like(weights_BV).exponential_()).argmax(dim=-1)


CASES = FamilyCases(
    family=DEVICE_SAMPLE,
    cases=tuple(make_case(kind, rows) for kind in KINDS for rows in ROWS),
    baselines=(Baseline(name="torch", decline=accept_all, prepare=prepare_torch),),
    compared_with=("torch", "reference"),
)
