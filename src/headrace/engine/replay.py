"""The replay back end: scripted tokens behind the whole server, in every role.

A script is a JSON-lines file. A line ``{"tokens": [5, 9, 151]}`` is played by the requests in
turn (request i plays line i modulo the number of lines); ``{"match": [1, 2], "tokens": [...]}``
is played by requests whose prompt begins with those token ids. After its last token a script
goes on with ``eos``. KV is written and moved as a model's would be: position p holds its
token id, so that a wrong transfer is visible.

Leaves out everything a model does; scheduling, transfer, sampling and text are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from headrace.core.errors import CheckpointError
from headrace.core.layouts import CacheLayout, KvSchema
from headrace.engine.backend import Row
from headrace.engine.pool_view import copy_block, digest_kv, view_pool

PREFIX = "replay:"


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a replay file."""

    tokens: list[int]
    match: list[int] = []


def load_scripts(path: Path, *, vocab_size: int) -> list[Script]:
    """Read a replay file, or raise ``CheckpointError`` with the line at fault."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such replay file; expected JSON lines of token ids")
    scripts = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            script = msgspec.json.decode(line, type=Script)
        except msgspec.MsgspecError as error:
            raise CheckpointError(
                f'{path}:{number}: expected {{"tokens": [ids]}}, got: {error}'
            ) from error
        strange = [one for one in script.tokens if not 0 <= one < vocab_size]
        if strange:
            raise CheckpointError(
                f"{path}:{number}: token {strange[0]}: expected ids from 0 to {vocab_size - 1}"
            )
        scripts.append(script)
    if not scripts:
        raise CheckpointError(f"{path}: holds no script; expected at least one JSON line")
    return scripts


class ReplayBackend:
    """Plays scripts instead of running a model.

    Args:
        scripts: What to play.
        vocab_size: Tokens of the vocabulary that the server's tokenizer has.
        eos_token_id: What follows the end of a script.
        schemas: KV of each layer, as a model of that size would have it.
        heads: KV heads held by this rank.
    """

    owns_memory = False

    def __init__(
        self,
        scripts: Sequence[Script],
        *,
        vocab_size: int,
        eos_token_id: int,
        schemas: tuple[KvSchema, ...],
        heads: range,
    ) -> None:
        self.schemas = schemas
        self.vocab_size = vocab_size
        self._heads = heads
        self._eos = eos_token_id
        self._matching = [script for script in scripts if script.match]
        self._in_turn = [script for script in scripts if not script.match]
        self._caches: list[Tensor] = []
        self._block_size = 0

    def allocate(self, layout: CacheLayout) -> None:
        """Refuse: the pool lies in the rank's region."""
        raise AssertionError("this backend is attached to a region")

    def attach(self, region: memoryview, *, num_blocks: int, block_size: int) -> None:
        """See ``Backend.attach``."""
        layout = CacheLayout(
            layers=self.schemas,
            first_head=self._heads.start,
            num_heads=len(self._heads),
            num_blocks=num_blocks,
            block_size=block_size,
        )
        self._caches = view_pool(region, layout)
        self._block_size = block_size

    def run(self, rows: Sequence[Row], *, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """See ``Backend.run``."""
        tokens_T, slots_T = self._lay_out(rows)
        for layer, cache in enumerate(self._caches):
            self._write(cache, tokens_T, slots_T)
            if on_layer is not None:
                on_layer(layer)
        played = [self._next_token(row) for row in rows if row.wants_logits]
        logits_LV = torch.zeros(len(played), self.vocab_size)
        if played:
            logits_LV[torch.arange(len(played)), torch.tensor(played)] = 100.0
        return logits_LV

    def copy_block(self, source: int, target: int) -> None:
        """See ``Backend.copy_block``."""
        copy_block(self._caches, source, target)

    def kv_digests(self, block_ids: Sequence[int], num_tokens: int) -> list[list[bytes]]:
        """See ``Backend.kv_digests``."""
        return digest_kv(self._caches, block_ids, num_tokens)

    def close(self) -> None:
        """See ``Backend.close``."""
        self._caches = []

    def _lay_out(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Return all rows' tokens and the slots of the pool that they go to."""
        size = self._block_size
        tokens: list[int] = []
        slots: list[int] = []
        for row in rows:
            tokens += row.token_ids
            span = range(row.start, row.start + len(row.token_ids))
            slots += [row.block_ids[at // size] * size + at % size for at in span]
        return torch.tensor(tokens, dtype=torch.float32), torch.tensor(slots, dtype=torch.int64)

    @staticmethod
    def _write(cache: Tensor, tokens_T: Tensor, slots_T: Tensor) -> None:
        pool = cache.flatten(2, 3)
        values = tokens_T.to(cache.dtype)[:, None].expand(*pool.shape[:2], -1, pool.shape[3])
        pool.index_copy_(2, slots_T, values)

    def _next_token(self, row: Row) -> int:
        script = self._script(row)
        index = row.start + len(row.token_ids) - row.num_prompt_tokens
        return script.tokens[index] if index < len(script.tokens) else self._eos

    def _script(self, row: Row) -> Script:
        if self._in_turn and not self._matching:
            return self._in_turn[row.ordinal % len(self._in_turn)]
        first = self._first_tokens(row)
        for script in self._matching:
            if first[: len(script.match)] == script.match:
                return script
        if not self._in_turn:
            return Script(tokens=[])
        return self._in_turn[row.ordinal % len(self._in_turn)]

    def _first_tokens(self, row: Row) -> list[int]:
        """Read the prompt's beginning back from the KV, where every position holds its id."""
        longest = max(len(script.match) for script in self._matching)
        cache = self._caches[0]
        num = min(longest, row.start + len(row.token_ids))
        positions = torch.arange(num)
        blocks = torch.tensor(list(row.block_ids))[positions // cache.shape[3]]
        return [int(x) for x in cache[0, 0, blocks, positions % cache.shape[3], 0].tolist()]
