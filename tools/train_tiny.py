"""Train the embedded model: tokenizer, Qwen3-MoE target and MTP layer, in one go.

    python tools/train_tiny.py --text GRAMMAR --books BOOKS --out DIR \
        --heldout grammar=FILE --heldout books=FILE

Writes ``DIR/files`` (the checkpoint), ``train.log``, ``evaluation.json``, ``samples.md`` and
``loss.png``.  Text files hold documents closed by a line ``<|endoftext|>`` and may be ``.xz``.
It needs torch, tokenizers, safetensors and matplotlib, and nothing of ``headrace``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import random
import sys
import time
from pathlib import Path

import torch
from tiny import checkpoint, corpus, evaluate, report, samples
from tiny.network import Mtp, Target, TinyConfig
from tiny.training import TrainingConfig, train

log = logging.getLogger("train_tiny")
# The tokenizer's merges settle long before the whole text is read.
TOKENIZER_DOCUMENTS = 40_000
LONG_CONTEXT = 4096


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="text to repeat as needed")
    parser.add_argument("--books", type=Path, help="text to pass over a fixed number of times")
    parser.add_argument("--heldout", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--max-documents", type=int, help="use only so many (for a trial)")
    for field in dataclasses.fields(TrainingConfig):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default)
    return parser.parse_args()


def set_up_log(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(directory / "train.log", "w")
    handlers = [logging.StreamHandler(sys.stdout), file]
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers)


def read_heldout(arguments: list[str]) -> dict[str, list[str]]:
    pairs = (argument.partition("=") for argument in arguments)
    return {name: corpus.read_documents(Path(file)) for name, _, file in pairs}


def write_report(directory: Path, heldout: dict[str, list[str]], device: torch.device) -> None:
    """Measure what was written, reading it back in float32."""
    target, mtp, tokenizer = checkpoint.load(directory / "files", device)
    encoded = {name: corpus.encode(tokenizer, texts) for name, texts in heldout.items()}
    result: dict[str, object] = {"window": evaluate.WINDOW, "weights": "bfloat16 read as float32"}
    for name, ids in encoded.items():
        result[name] = evaluate.score(target, mtp, ids)
        log.info("%s: %s", name, result[name])
    first = next(iter(encoded.values()), [])
    if sum(map(len, first)) > LONG_CONTEXT:
        rows = corpus.pack(first, LONG_CONTEXT + 1)[:32]
        edges = (0, 256, 512, 1024, 2048, LONG_CONTEXT)
        result["loss_by_position_packed"] = evaluate.loss_by_position(target, rows, edges)
        result["expert_shares"] = evaluate.expert_shares(target, first)
    (directory / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    texts = samples.write_samples(target, tokenizer, seed=1)
    sections = (f"## {number}\n\n```text\n{text}\n```\n" for number, text in enumerate(texts, 1))
    (directory / "samples.md").write_text("# Ten samples\n\n" + "\n".join(sections))


def main() -> None:
    arguments = parse_arguments()
    names = [field.name for field in dataclasses.fields(TrainingConfig)]
    config = TrainingConfig(**{name: getattr(arguments, name) for name in names})
    set_up_log(arguments.out)
    start = time.perf_counter()
    log.info("torch %s, %s; %s", torch.__version__, arguments.device, config)
    random.seed(config.seed)
    torch.manual_seed(config.seed)
    device = torch.device(arguments.device)

    grammar = corpus.read_documents(arguments.text)[: arguments.max_documents]
    books = corpus.read_documents(arguments.books) if arguments.books else []
    books = books[: arguments.max_documents]
    heldout = read_heldout(arguments.heldout)
    random.shuffle(books)
    tokenizer = corpus.train_tokenizer(
        [*grammar[:TOKENIZER_DOCUMENTS], *books], TinyConfig().vocab_size
    )
    log.info("tokenizer trained, %.0f s", time.perf_counter() - start)
    rows = [
        corpus.pack(corpus.encode(tokenizer, texts), config.row_tokens + 1)
        for texts in (grammar, books or grammar[:0])
    ]
    log.info("rows: grammar %d, books %d, %.0f s", *map(len, rows), time.perf_counter() - start)

    target, mtp = Target(TinyConfig()).to(device), Mtp(TinyConfig()).to(device)
    sizes = [sum(p.numel() for p in module.parameters()) for module in (target, mtp)]
    log.info("parameters: target %d, MTP layer %d", *sizes)
    glance = {name: corpus.encode(tokenizer, texts[:200]) for name, texts in heldout.items()}

    def check() -> dict[str, float]:
        scores = {name: evaluate.score(target, mtp, ids) for name, ids in glance.items()}
        return {name: each["loss_nats_per_token"] for name, each in scores.items()}

    history = train(target, mtp, *rows, config, check)
    checkpoint.save(arguments.out / "files", target, mtp, tokenizer)
    report.plot_losses(history, arguments.out / "loss.png")
    write_report(arguments.out, heldout, device)
    log.info("done, %.0f s", time.perf_counter() - start)


if __name__ == "__main__":
    main()
