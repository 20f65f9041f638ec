"""The training loop: joint steps of target and MTP layer over packed rows."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.tiny.network import Mtp, Target

log = logging.getLogger(__name__)
IGNORED = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """The recipe; the defaults made the published model."""

    steps: int = 8000
    long_steps: int = 600
    max_minutes: float = 5.9
    batch_tokens: int = 98_304
    row_tokens: int = 2048
    long_row_tokens: int = 8192
    book_passes: float = 8.0
    learning_rate: float = 3e-3
    warmup_steps: int = 200
    weight_decay: float = 0.1
    balance_weight: float = 0.01
    log_every_steps: int = 100
    check_every_steps: int = 1000
    seed: int = 1

    def __post_init__(self) -> None:
        may_be_zero = {"book_passes", "weight_decay", "balance_weight", "seed"}
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name not in may_be_zero):
                bound = "0 or more" if field.name in may_be_zero else "more than 0"
                raise ValueError(f"{field.name} must be {bound}, got {value}")
        longest = max(self.row_tokens, self.long_row_tokens)
        if self.batch_tokens < longest:
            raise ValueError(
                f"batch_tokens must hold the longest row, {longest} tokens, got {self.batch_tokens}"
            )


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

    The MTP layer learns the target's distribution after token t+1 rather than the text's
    token t+2, since a draft is accepted when it matches the target.  No gradient flows back
    from it; all that the two share in a step is the norm by which gradients are clipped.
    """
    hidden, balance = target(inputs)
    logits = target.logits(hidden)
    text_loss = F.cross_entropy(
        logits.flatten(0, 1).float(), wanted.flatten(), ignore_index=IGNORED
    )
    table = target.embed_tokens.weight.detach()
    states, mtp_balance = mtp(F.embedding(inputs[:, 1:], table), hidden[:, :-1].detach())
    draft = F.linear(states, table).float().log_softmax(-1)
    teacher = logits[:, 1:].detach().float().softmax(-1)
    return text_loss, -(teacher * draft).sum(-1).mean(), balance + mtp_balance


def row_order(grammar: int, books: int, config: TrainingConfig) -> Tensor:
    """Which row each batch place of the first stage takes; book rows follow grammar rows.

    Books overfit within a few passes, so their share is fixed by ``book_passes`` and the
    grammar's rows, repeated as often as needed, fill the rest.
    """
    total = config.steps * (config.batch_tokens // config.row_tokens)
    from_books = min(round(books * config.book_passes), total // 2)
    order = cycle(grammar, total - from_books)
    if from_books:
        order = torch.cat((order, grammar + cycle(books, from_books)))
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
    steps = config.steps + config.long_steps
    progress = max(step / steps, elapsed_s / (60 * config.max_minutes))
    warmup = min(1.0, (step + 1) / config.warmup_steps)
    return config.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def train(
    target: Target,
    mtp: Mtp,
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
    optimizer = make_optimizer([target, mtp], config)
    parameters = [*target.parameters(), *mtp.parameters()]
    # A CPU is for trials: it would spend minutes compiling, and bf16 is slow on many.
    on_gpu = device.type == "cuda"
    step_losses = torch.compile(losses, dynamic=False) if on_gpu else losses
    history: list[dict[str, float]] = []
    start = last_time = time.perf_counter()
    last_step, final = 0, config.steps + config.long_steps - 1
    for step, rows in enumerate(source):
        rate = rate_at(step, time.perf_counter() - start, config)
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, wanted = rows[:, :-1].contiguous(), rows[:, 1:]
        wanted = without_missing_thoughts(inputs, wanted, marks)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            parts = step_losses(target, mtp, inputs, wanted=wanted)
        (parts[0] + parts[1] + config.balance_weight * parts[2]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
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
    return history
