"""Measure a checkpoint that ``train_tiny.py`` wrote on a text file, and print the figures.

    python -m tools.evaluate_tiny src/headrace/models/tiny/files tests/data/heldout_grammar.txt

The protocol is in ``tools/tiny/evaluate.py`` and, in words, in ``docs/model-card.md``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tools.tiny import checkpoint, corpus, evaluate
from tools.tiny.arguments import Parser, at_least, device, model_folder, text_file


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(prog="evaluate_tiny", description=__doc__.splitlines()[0])
    parser.add_argument("model", type=model_folder)
    parser.add_argument("text", type=text_file)
    parser.add_argument("--window", type=at_least(2), default=evaluate.WINDOW)
    parser.add_argument("--device", type=device, default="cpu")
    arguments = parser.parse_args(argv)
    try:
        documents = corpus.read_documents(arguments.text)
    except ValueError as error:
        parser.error(str(error))
    target, mtp, tokenizer = checkpoint.load(arguments.model, arguments.device)
    encoded = corpus.encode(tokenizer, documents)
    result = evaluate.score(target, mtp, encoded, window=arguments.window)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
