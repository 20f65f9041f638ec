"""Train the embedded model: tokenizer, Qwen3-MoE target and MTP layer, in one go.

    python -m tools.train_tiny --text GRAMMAR --books BOOKS --out DIR \
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
from tokenizers import Tokenizer

from tools.tiny import checkpoint, corpus, evaluate, report, samples
from tools.tiny.network import Mtp, Target, TinyConfig
from tools.tiny.training import AnswerMarks, PackedText, TrainingConfig, batches, train

log = logging.getLogger("train_tiny")
# The tokenizer's merges settle long before the whole text is read.
TOKENIZER_DOCUMENTS = 40_000
POSITION_EDGES = (0, 256, 512, 1024, 2048, 4096, 8192)


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
    handlers: list[logging.Handler] = [
        logging.StreamHandler(sys.stdout),
        logging.FileHandler(directory / "train.log", "w"),
    ]
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
    rows = corpus.pack(first, POSITION_EDGES[-1] + 1)[:32]
    if len(rows):
        positions = evaluate.loss_by_position(target, rows, POSITION_EDGES)
        result["loss_by_position_packed"] = positions
        result["expert_shares"] = evaluate.expert_shares(target, first)
    (directory / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    texts = samples.write_samples(target, tokenizer, seed=1)
    sections = (f"## {number}\n\n```text\n{text}\n```\n" for number, text in enumerate(texts, 1))
    (directory / "samples.md").write_text("# Ten samples\n\n" + "\n".join(sections))


def pack_all(
    tokenizer: Tokenizer, grammar: list[str], books: list[str], *, config: TrainingConfig
) -> PackedText:
    """Tokenize and pack both texts, apart for the main stage and mixed for the long one."""
    encoded = [corpus.encode(tokenizer, documents) for documents in (grammar, books)]
    mixed = [*encoded[0], *encoded[1]]
    random.shuffle(mixed)
    return PackedText(
        grammar=corpus.pack(encoded[0], config.row_tokens + 1),
        books=corpus.pack(encoded[1], config.row_tokens + 1),
        long=corpus.pack(mixed, config.long_row_tokens + 1),
    )


def main() -> None:
    arguments = parse_arguments()
    names = [field.name for field in dataclasses.fields(TrainingConfig)]
    config = TrainingConfig(**{name: getattr(arguments, name) for name in names})
    set_up_log(arguments.out)
    start = time.perf_counter()
    log.info("torch %s, %s; %s", torch.__version__, arguments.device, config)
    random.seed(config.seed)
    torch.manual_seed(config.seed)
    device, sizes = torch.device(arguments.device), TinyConfig()

    grammar = corpus.read_documents(arguments.text)[: arguments.max_documents]
    books = corpus.read_documents(arguments.books) if arguments.books else []
    books = random.sample(books, min(len(books), arguments.max_documents or len(books)))
    heldout = read_heldout(arguments.heldout)
    learnt_from = [*grammar[:TOKENIZER_DOCUMENTS], *books]
    tokenizer = corpus.train_tokenizer(learnt_from, sizes.vocab_size)
    text = pack_all(tokenizer, grammar, books, config=config)
    counts = (len(rows) for rows in (text.grammar, text.books, text.long))
    log.info("rows: grammar %d, books %d, long %d", *counts)

    target, mtp = Target(sizes).to(device), Mtp(sizes).to(device)
    counts = (sum(p.numel() for p in module.parameters()) for module in (target, mtp))
    log.info("parameters: target %d, MTP layer %d", *counts)
    log.info("ready after %.0f s", time.perf_counter() - start)
    glance = {name: corpus.encode(tokenizer, texts[:200]) for name, texts in heldout.items()}

    def check() -> dict[str, float]:
        scores = {name: evaluate.score(target, mtp, ids) for name, ids in glance.items()}
        return {name: each["loss_nats_per_token"] for name, each in scores.items()}

    header = tokenizer.encode("<|im_start|>assistant\n").ids
    marks = AnswerMarks(header=header, think=tokenizer.token_to_id("<think>"))
    source = batches(text, config, device)
    history = train(target, mtp, source, config=config, marks=marks, check=check)
    checkpoint.save(arguments.out / "files", target, mtp, tokenizer=tokenizer)
    report.plot_losses(history, arguments.out / "loss.png")
    write_report(arguments.out, heldout, device)
    log.info("done, %.0f s", time.perf_counter() - start)


if __name__ == "__main__":
    main()
