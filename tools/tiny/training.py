"""The training loop: joint steps of target and MTP layer over packed rows."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from tiny.network import Mtp, Target
from torch import Tensor, nn

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """The recipe; the defaults made the published model."""

    steps: int = 10_000
    max_minutes: float = 5.0
    batch_rows: int = 48
    row_tokens: int = 2048
    book_passes: float = 8.0
    learning_rate: float = 3e-3
    warmup_steps: int = 200
    weight_decay: float = 0.1
    balance_weight: float = 0.01
    log_every_steps: int = 100
    check_every_steps: int = 1000
    seed: int = 1


def losses(target: Target, mtp: Mtp, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Next-token loss, MTP loss and expert balance of rows ``[B, T + 1]``.

    The MTP layer learns the target's distribution after token t+1 rather than the text's
    token t+2, since a draft is accepted when it matches the target.  Nothing flows back from
    it: the target is the same with and without an MTP layer beside it.
    """
    inputs, wanted = rows[:, :-1], rows[:, 1:]
    hidden, balance = target(inputs)
    logits = target.logits(hidden)
    text_loss = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())
    table = target.embed_tokens.weight.detach()
    states, mtp_balance = mtp(F.embedding(inputs[:, 1:], table), hidden[:, :-1].detach())
    draft = F.linear(states, table).float().log_softmax(-1)
    teacher = logits[:, 1:].detach().float().softmax(-1)
    return text_loss, -(teacher * draft).sum(-1).mean(), balance + mtp_balance


def row_order(grammar: int, books: int, config: TrainingConfig, device: torch.device) -> Tensor:
    """Which row each batch place takes, ``[steps, batch_rows]``; book rows follow grammar rows.

    Books overfit within a few passes, so their share is fixed by ``book_passes`` and the
    grammar's rows, repeated as often as needed, fill the rest.
    """
    generator = torch.Generator(device).manual_seed(config.seed)

    def cycle(rows: int, count: int) -> Tensor:
        passes = [
            torch.randperm(rows, generator=generator, device=device)
            for _ in range(math.ceil(count / rows))
        ]
        return torch.cat(passes)[:count]

    total = config.steps * config.batch_rows
    from_books = min(round(books * config.book_passes), total // 2)
    order = cycle(grammar, total - from_books)
    if from_books:
        order = torch.cat((order, grammar + cycle(books, from_books)))
    shuffled = order[torch.randperm(total, generator=generator, device=device)]
    return shuffled.view(config.steps, config.batch_rows)


def make_optimizer(modules: list[nn.Module], config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW; norm weights are not decayed."""
    parameters = [p for module in modules for p in module.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def rate_at(step: int, elapsed_s: float, config: TrainingConfig) -> float:
    """Learning rate: linear warm-up, then half a cosine to zero.

    Progress is the larger of the shares of steps and of allowed time, so that a slower
    machine ends early but with a finished schedule.
    """
    progress = max(step / config.steps, elapsed_s / (60 * config.max_minutes))
    warmup = min(1.0, (step + 1) / config.warmup_steps)
    return config.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def train(
    target: Target,
    mtp: Mtp,
    grammar: np.ndarray,
    books: np.ndarray,
    config: TrainingConfig,
    check: Callable[[], dict[str, float]],
) -> list[dict[str, float]]:
    """Run all steps; returns what was logged, with ``check()``'s figures every so often."""
    device = target.embed_tokens.weight.device
    rows = torch.from_numpy(np.concatenate((grammar, books))).to(device)
    order = row_order(len(grammar), len(books), config, device)
    optimizer = make_optimizer([target, mtp], config)
    parameters = [*target.parameters(), *mtp.parameters()]
    # A CPU is for trials: it would spend minutes compiling, and bf16 is slow on many.
    on_gpu = device.type == "cuda"
    step_losses = torch.compile(losses, dynamic=False) if on_gpu else losses
    history: list[dict[str, float]] = []
    start = last_time = time.perf_counter()
    last_step = 0
    for step, indices in enumerate(order):
        rate = rate_at(step, time.perf_counter() - start, config)
        if rate <= 0:
            log.info("out of time after %d of %d steps", step, config.steps)
            break
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            parts = step_losses(target, mtp, rows[indices].long())
        (parts[0] + parts[1] + config.balance_weight * parts[2]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        final = step + 1 == config.steps
        if step % config.log_every_steps == 0 or final:
            text, draft, balance = (part.item() for part in parts)
            now = time.perf_counter()
            tokens = (step - last_step) * config.batch_rows * config.row_tokens
            entry = {"step": step, "text": text, "mtp": draft, "balance": balance, "rate": rate}
            if (step and step % config.check_every_steps == 0) or final:
                entry |= check()
            history.append(entry)
            figures = "  ".join(f"{key} {value:.4g}" for key, value in entry.items())
            log.info("%s  tokens/s %.3g  s %.0f", figures, tokens / (now - last_time), now - start)
            last_step, last_time = step, time.perf_counter()
    return history
