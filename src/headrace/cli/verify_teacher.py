"""``headrace verify --device cuda``: does a device engine compute the model that it was given.

Bits and tokens of a free run cannot be compared there: another order of summation rounds
differently, and after the first other token two answers have nothing in common. So the engine
answers alone, and plain torch is run over what it said.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.cli.source import ModelSource
from headrace.cli.verify_compare import Run
from headrace.cli.verify_forced import ForcedReport, judge, noise_margin
from headrace.cli.verify_run import Request
from headrace.core.launch import EngineConfig
from headrace.core.sharding import Role, Sharding
from headrace.deployment import DeploymentConfig, describe_shardings

if TYPE_CHECKING:
    from torch import Tensor


def force(
    config: DeploymentConfig,
    source: ModelSource,
    requests: Sequence[Request],
    *,
    asked: Sequence[tuple[str, int, str]],
    runs: Sequence[Run],
) -> ForcedReport:
    """Run prompts and answers through plain torch, and judge the engine's logits and tokens.

    Args:
        config: The deployment that ran; it has ended and left its device.
        source: Its model.
        requests: What was asked.
        asked: (prompt, its length in tokens, setting) per request.
        runs: What the engine made of them, with a trace of every token.

    Raises:
        UserError: A folder that is not as its config promises, or a model with biases.

    Cost:
        The weights once in the model's dtype on the engine's device, and all tokens through them
        in that dtype and in float64, a layer at a time.
    """
    # Torch comes with it, and no other use of the command should wait for that.
    import torch

    from headrace.models.teacher import Lesson, teacher_logits

    dtype = config.engine.resolve_dtype(source.config.dtype)
    tensors = _tensors(config.engine, source, dtype=dtype)
    lessons = [
        Lesson(
            token_ids=[*request.prompt_ids, *run.token_ids[:-1]],
            first=len(request.prompt_ids) - 1,
        )
        for request, run in zip(requests, runs, strict=True)
    ]
    kept = torch.float8_e4m3fn if config.engine.kv_dtype == "fp8" else None
    exact, plain = (
        [
            logits_LV.numpy()
            for logits_LV in teacher_logits(
                tensors, source.config, lessons, dtype=kind, kv_dtype=cache
            )
        ]
        for kind, cache in ((torch.float64, None), (getattr(torch, dtype), kept))
    )
    del tensors
    gc.collect()
    return _report(config, source, asked=asked, runs=runs, exact=exact, plain=plain)


def _report(
    config: DeploymentConfig,
    source: ModelSource,
    *,
    asked: Sequence[tuple[str, int, str]],
    runs: Sequence[Run],
    exact: Sequence[np.ndarray],
    plain: Sequence[np.ndarray],
) -> ForcedReport:
    margin, room = noise_margin(exact, plain)
    return ForcedReport(
        model=source.name,
        deployment=describe_shardings(config, source.config),
        device=config.engine.device,
        dtype=config.engine.resolve_dtype(source.config.dtype),
        margin=margin,
        room=room,
        results=[
            judge(each, run, exact_LV=exact_LV, plain_LV=plain_LV, margin=margin)
            for each, run, exact_LV, plain_LV in zip(asked, runs, exact, plain, strict=True)
        ],
    )


def _tensors(engine: EngineConfig, source: ModelSource, *, dtype: str) -> dict[str, Tensor]:
    """Return the model as the engine had it: the same file, or the same random numbers."""
    import torch

    from headrace.models.checkpoint.load import load_weights
    from headrace.models.device.random import random_tensors
    from headrace.models.slices import weight_slices

    kind, device = getattr(torch, dtype), device_of(engine)
    if engine.load_format == "random":
        return random_tensors(source.config, dtype=kind, device=device)
    specs = weight_slices(source.config, Sharding(), Role.MONO, rank=0)
    return load_weights(source.folder, specs, dtype=kind, device=device)


def device_of(engine: EngineConfig) -> str:
    """Return where plain torch runs: on the engine's device, which is free again by then."""
    return engine.device
