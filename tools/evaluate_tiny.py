"""Measure a checkpoint that ``train_tiny.py`` wrote on a text file, and print the figures.

    python -m tools.evaluate_tiny src/headrace/models/tiny/files tests/data/heldout_grammar.txt

The protocol is in ``tools/tiny/evaluate.py`` and, in words, in ``docs/model-card.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from tools.tiny import checkpoint, corpus, evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--window", type=int, default=evaluate.WINDOW)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    target, mtp, tokenizer = checkpoint.load(arguments.model, torch.device(arguments.device))
    encoded = corpus.encode(tokenizer, corpus.read_documents(arguments.text))
    result = evaluate.score(target, mtp, encoded, window=arguments.window)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
