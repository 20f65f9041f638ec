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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import cuda

from tools.tiny import checkpoint, corpus, evaluate, report, samples
from tools.tiny.arguments import Parser, at_least, device, named_file, text_file
from tools.tiny.network import Mtp, Target, TinyConfig
from tools.tiny.training import AnswerMarks, PackedText, TrainingConfig, batches, train

log = logging.getLogger("tools.train_tiny")
# The tokenizer's merges settle long before the whole text is read.
TOKENIZER_DOCUMENTS = 40_000
POSITION_EDGES = (0, 256, 512, 1024, 2048, 4096, 8192)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """What is read before the first step: documents, and the training rows made of them."""

    tokenizer: Tokenizer
    rows: PackedText
    heldout: dict[str, list[str]]


def make_parser() -> Parser:
    parser = Parser(prog="train_tiny", description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=text_file, required=True, help="text to repeat as needed")
    parser.add_argument("--books", type=text_file, help="text to pass over a fixed number of times")
    parser.add_argument(
        "--heldout", type=named_file, action="append", default=[], metavar="NAME=FILE"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", type=device, default="cuda" if cuda.is_available() else "cpu")
    parser.add_argument("--max-documents", type=at_least(1), help="use only so many (for a trial)")
    for field in dataclasses.fields(TrainingConfig):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default)
    return parser


@contextmanager
def logging_to(directory: Path) -> Iterator[None]:
    """Log to standard output and to ``train.log`` in the directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    handlers = (
        logging.StreamHandler(sys.stdout),
        logging.FileHandler(directory / "train.log", "w", encoding="utf-8"),
    )
    logger = logging.getLogger("tools")
    logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def write_report(directory: Path, heldout: dict[str, list[str]], on: torch.device) -> None:
    """Measure what was written, reading it back in float32."""
    target, mtp, tokenizer = checkpoint.load(directory / "files", on)
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
    """Tokenize and pack both texts, apart for the main stage and mixed for the long one.

    Raises:
        ValueError: if a stage gets no row.
    """
    encoded = [corpus.encode(tokenizer, documents) for documents in (grammar, books)]
    mixed = [*encoded[0], *encoded[1]]
    random.shuffle(mixed)
    rows = PackedText(
        grammar=corpus.pack(encoded[0], config.row_tokens + 1),
        books=corpus.pack(encoded[1], config.row_tokens + 1),
        long=corpus.pack(mixed, config.long_row_tokens + 1),
    )
    for stage, length in ((rows.grammar, config.row_tokens), (rows.long, config.long_row_tokens)):
        if not len(stage):
            raise ValueError(f"the text fills no row of {length} tokens: give more text")
    return rows


def read_material(
    arguments: argparse.Namespace, config: TrainingConfig, sizes: TinyConfig
) -> Material:
    """Read and tokenize every text.

    Raises:
        ValueError: if a text is unreadable or too short.
    """
    grammar = corpus.read_documents(arguments.text)[: arguments.max_documents]
    books = corpus.read_documents(arguments.books) if arguments.books else []
    books = random.sample(books, min(len(books), arguments.max_documents or len(books)))
    learnt_from = [*grammar[:TOKENIZER_DOCUMENTS], *books]
    tokenizer = corpus.train_tokenizer(learnt_from, sizes.vocab_size)
    return Material(
        tokenizer=tokenizer,
        rows=pack_all(tokenizer, grammar, books, config=config),
        heldout={name: corpus.read_documents(file) for name, file in arguments.heldout},
    )


def make_model(
    material: Material, config: TrainingConfig, sizes: TinyConfig, *, out: Path, on: torch.device
) -> None:
    """Train both networks and write everything that the module's docstring lists but the log."""
    tokenizer, rows = material.tokenizer, material.rows
    counts = (len(stage) for stage in (rows.grammar, rows.books, rows.long))
    log.info("rows: grammar %d, books %d, long %d", *counts)
    target, mtp = Target(sizes).to(on), Mtp(sizes).to(on)
    counts = (sum(p.numel() for p in module.parameters()) for module in (target, mtp))
    log.info("parameters: target %d, MTP layer %d", *counts)
    heldout = material.heldout.items()
    glance = {name: corpus.encode(tokenizer, texts[:200]) for name, texts in heldout}

    def check() -> dict[str, float]:
        scores = {name: evaluate.score(target, mtp, ids) for name, ids in glance.items()}
        return {name: each["loss_nats_per_token"] for name, each in scores.items()}

    header = tokenizer.encode("<|im_start|>assistant\n").ids
    marks = AnswerMarks(header=header, think=tokenizer.token_to_id("<think>"))
    source = batches(rows, config, on)
    history = train(target, mtp, source, config=config, marks=marks, check=check)
    checkpoint.save(out / "files", target, mtp, tokenizer=tokenizer)
    report.plot_losses(history, out / "loss.png")
    write_report(out, material.heldout, on)


def main(argv: Sequence[str] | None = None) -> None:
    parser, sizes = make_parser(), TinyConfig()
    arguments = parser.parse_args(argv)
    names = [field.name for field in dataclasses.fields(TrainingConfig)]
    start = time.perf_counter()
    try:
        config = TrainingConfig(**{name: getattr(arguments, name) for name in names})
        random.seed(config.seed)
        torch.manual_seed(config.seed)
        material = read_material(arguments, config, sizes)
    except ValueError as error:
        parser.error(str(error))
    with logging_to(arguments.out):
        log.info("torch %s, %s; %s", torch.__version__, arguments.device, config)
        log.info("read the text in %.0f s", time.perf_counter() - start)
        make_model(material, config, sizes, out=arguments.out, on=arguments.device)
        log.info("done, %.0f s", time.perf_counter() - start)


if __name__ == "__main__":
    main()
