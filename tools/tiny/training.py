"""The training loop: joint steps of target and MTP layer over packed rows."""

from __future__ import annotations

import logging
import math
import time
<<<<<<< HEAD
from collections.abc import Callable
=======
from collections.abc import Callable, Iterator, Sequence
>>>>>>> tiny
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
<<<<<<< HEAD
from tiny.network import Mtp, Target
from torch import Tensor, nn

log = logging.getLogger(__name__)
=======
from torch import Tensor, nn

from tools.tiny.network import Mtp, Target

log = logging.getLogger(__name__)
IGNORED = -100
>>>>>>> tiny


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """The recipe; the defaults made the published model."""

<<<<<<< HEAD
    steps: int = 10_000
    max_minutes: float = 5.0
    batch_rows: int = 48
    row_tokens: int = 2048
=======
    steps: int = 8000
    long_steps: int = 600
    max_minutes: float = 5.9
    batch_tokens: int = 98_304
    row_tokens: int = 2048
    long_row_tokens: int = 8192
>>>>>>> tiny
    book_passes: float = 8.0
    learning_rate: float = 3e-3
    warmup_steps: int = 200
    weight_decay: float = 0.1
    balance_weight: float = 0.01
    log_every_steps: int = 100
    check_every_steps: int = 1000
    seed: int = 1


<<<<<<< HEAD
def losses(target: Target, mtp: Mtp, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Next-token loss, MTP loss and expert balance of rows ``[B, T + 1]``.
=======
@dataclass(frozen=True, kw_only=True, slots=True)
class PackedText:
    """Rows of token ids: ``[R, row_tokens + 1]`` twice, and ``[R, long_row_tokens + 1]``."""

    grammar: np.ndarray
    books: np.ndarray
    long: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerMarks:
    """The tokens that open an assistant's turn, and the one that opens its thought."""

    header: Sequence[int]
    think: int | None


def without_missing_thoughts(inputs: Tensor, wanted: Tensor, marks: AnswerMarks) -> Tensor:
    """``wanted``, less the first token of every answer that begins without a think block.

    The chat template drops the thoughts of earlier turns, so half of the text's answers have
    none.  A model that learnt their first token would think at random.
    """
    after_header = torch.ones_like(inputs, dtype=torch.bool)
    for back, token in enumerate(reversed(marks.header)):
        after_header &= inputs.roll(back, dims=1) == token
    return wanted.masked_fill(after_header & (wanted != marks.think), IGNORED)


def losses(
    target: Target, mtp: Mtp, inputs: Tensor, *, wanted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Next-token loss, MTP loss and expert balance of ``inputs [B, T]``.
>>>>>>> tiny

    The MTP layer learns the target's distribution after token t+1 rather than the text's
    token t+2, since a draft is accepted when it matches the target.  Nothing flows back from
    it: the target is the same with and without an MTP layer beside it.
    """
<<<<<<< HEAD
    inputs, wanted = rows[:, :-1], rows[:, 1:]
    hidden, balance = target(inputs)
    logits = target.logits(hidden)
    text_loss = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())
=======
    hidden, balance = target(inputs)
    logits = target.logits(hidden)
    text_loss = F.cross_entropy(
        logits.flatten(0, 1).float(), wanted.flatten(), ignore_index=IGNORED
    )
>>>>>>> tiny
    table = target.embed_tokens.weight.detach()
    states, mtp_balance = mtp(F.embedding(inputs[:, 1:], table), hidden[:, :-1].detach())
    draft = F.linear(states, table).float().log_softmax(-1)
    teacher = logits[:, 1:].detach().float().softmax(-1)
    return text_loss, -(teacher * draft).sum(-1).mean(), balance + mtp_balance


<<<<<<< HEAD
def row_order(grammar: int, books: int, config: TrainingConfig, device: torch.device) -> Tensor:
    """Which row each batch place takes, ``[steps, batch_rows]``; book rows follow grammar rows.
=======
def row_order(grammar: int, books: int, config: TrainingConfig) -> Tensor:
    """Which row each batch place of the first stage takes; book rows follow grammar rows.
>>>>>>> tiny

    Books overfit within a few passes, so their share is fixed by ``book_passes`` and the
    grammar's rows, repeated as often as needed, fill the rest.
    """
<<<<<<< HEAD
    generator = torch.Generator(device).manual_seed(config.seed)

    def cycle(rows: int, count: int) -> Tensor:
        passes = [
            torch.randperm(rows, generator=generator, device=device)
            for _ in range(math.ceil(count / rows))
        ]
        return torch.cat(passes)[:count]

    total = config.steps * config.batch_rows
=======
    total = config.steps * (config.batch_tokens // config.row_tokens)
>>>>>>> tiny
    from_books = min(round(books * config.book_passes), total // 2)
    order = cycle(grammar, total - from_books)
    if from_books:
        order = torch.cat((order, grammar + cycle(books, from_books)))
<<<<<<< HEAD
    shuffled = order[torch.randperm(total, generator=generator, device=device)]
    return shuffled.view(config.steps, config.batch_rows)
=======
    return order[torch.randperm(total)]


def cycle(rows: int, count: int) -> Tensor:
    """``count`` row numbers: as many shuffled passes over ``rows`` as that takes."""
    passes = [torch.randperm(rows) for _ in range(math.ceil(count / rows))]
    return torch.cat(passes)[:count]


def batches(text: PackedText, config: TrainingConfig, device: torch.device) -> Iterator[Tensor]:
    """Token ids ``[B, T + 1]`` of every step: short rows first, then a stage of long ones.

    The long stage is what makes positions beyond ``row_tokens`` usable; being the costlier
    one per token, it is kept as short as that allows.
    """
    long_rows = config.batch_tokens // config.long_row_tokens
    short_order = row_order(len(text.grammar), len(text.books), config)
    stages = (
        (np.concatenate((text.grammar, text.books)), short_order),
        (text.long, cycle(len(text.long), config.long_steps * long_rows)),
    )
    for rows, order in stages:
        on_device = torch.from_numpy(rows).to(device)
        for indices in order.to(device).split(config.batch_tokens // (rows.shape[1] - 1)):
            yield on_device[indices].long()
>>>>>>> tiny


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
<<<<<<< HEAD
    progress = max(step / config.steps, elapsed_s / (60 * config.max_minutes))
=======
    steps = config.steps + config.long_steps
    progress = max(step / steps, elapsed_s / (60 * config.max_minutes))
>>>>>>> tiny
    warmup = min(1.0, (step + 1) / config.warmup_steps)
    return config.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def train(
    target: Target,
    mtp: Mtp,
<<<<<<< HEAD
    grammar: np.ndarray,
    books: np.ndarray,
    config: TrainingConfig,
    check: Callable[[], dict[str, float]],
) -> list[dict[str, float]]:
    """Run all steps; returns what was logged, with ``check()``'s figures every so often."""
    device = target.embed_tokens.weight.device
    rows = torch.from_numpy(np.concatenate((grammar, books))).to(device)
    order = row_order(len(grammar), len(books), config, device)
=======
    source: Iterator[Tensor],
    *,
    config: TrainingConfig,
    marks: AnswerMarks,
    check: Callable[[], dict[str, float]],
) -> list[dict[str, float]]:
    """Take a step per batch of ``source``; returns what was logged.

    Every so often that includes the figures of ``check()``.
    """
    device = target.embed_tokens.weight.device
>>>>>>> tiny
    optimizer = make_optimizer([target, mtp], config)
    parameters = [*target.parameters(), *mtp.parameters()]
    # A CPU is for trials: it would spend minutes compiling, and bf16 is slow on many.
    on_gpu = device.type == "cuda"
    step_losses = torch.compile(losses, dynamic=False) if on_gpu else losses
    history: list[dict[str, float]] = []
    start = last_time = time.perf_counter()
<<<<<<< HEAD
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
=======
    last_step, final = 0, config.steps + config.long_steps - 1
    for step, rows in enumerate(source):
        rate = rate_at(step, time.perf_counter() - start, config)
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, wanted = rows[:, :-1].contiguous(), rows[:, 1:]
        wanted = without_missing_thoughts(inputs, wanted, marks)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            parts = step_losses(target, mtp, inputs, wanted=wanted)
>>>>>>> tiny
        (parts[0] + parts[1] + config.balance_weight * parts[2]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
<<<<<<< HEAD
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
=======
        if step % config.log_every_steps and step != final and rate > 0:
            continue
        text, draft, balance = (part.item() for part in parts)
        now = time.perf_counter()
        tokens = (step - last_step) * config.batch_tokens
        entry = {"step": step, "text": text, "mtp": draft, "balance": balance, "rate": rate}
        if (step and step % config.check_every_steps == 0) or step == final:
            entry |= check()
        history.append(entry)
        figures = "  ".join(f"{key} {value:.4g}" for key, value in entry.items())
        log.info("%s  tokens/s %.3g  s %.0f", figures, tokens / (now - last_time), now - start)
        last_step, last_time = step, time.perf_counter()
        if rate <= 0:
            log.info("out of time after %d of %d steps", step, final + 1)
            break
>>>>>>> tiny
    return history
