"""Command lines of the two scripts: what they take, and one line for what they do not."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch


class Parser(argparse.ArgumentParser):
    """Refuses with one line, where argparse would put the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; try --help\n")


def text_file(argument: str) -> Path:
    path = Path(argument)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no such file: {argument}")
    return path


def named_file(argument: str) -> tuple[str, Path]:
    name, _, file = argument.partition("=")
    if not name or not file:
        raise argparse.ArgumentTypeError(f"expected NAME=FILE, got {argument!r}")
    return name, text_file(file)


def model_folder(argument: str) -> Path:
    path = Path(argument)
    for file in ("config.json", "model.safetensors", "mtp.safetensors", "tokenizer.json"):
        if not (path / file).is_file():
            raise argparse.ArgumentTypeError(
                f"not a folder that the trainer wrote: no {path / file}"
            )
    return path


def at_least(minimum: int) -> Callable[[str], int]:
    def convert(argument: str) -> int:
        try:
            number = int(argument)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            expected = f"expected a whole number from {minimum} on, got {argument!r}"
            raise argparse.ArgumentTypeError(expected)
        return number

    return convert


def device(argument: str) -> torch.device:
    try:
        return torch.empty(0, device=argument).device
    except (AssertionError, RuntimeError) as error:  # the former where torch was built without it
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"cannot use {argument!r}: {reason}") from error
