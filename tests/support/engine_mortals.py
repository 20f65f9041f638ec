"""A world whose ranks die and come back, and that looks at every byte which becomes visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headrace.core.messages import Resumed
from headrace.core.requests import FinishReason
from headrace.engine.backend import Row
from headrace.engine.emitter import Emitter
from headrace.engine.replay import ReplayBackend
from headrace.engine.sequence import Sequence as TokenSequence
from headrace.engine.stepper import Stepper, Work
from tests.support.engine_parts import NUM_KV_HEADS
from tests.support.engine_world import World


class StampedBackend(ReplayBackend):
    """Plays scripts, and writes KV that tells token, layer, K or V, head and dimension."""

    def run(self, rows: Sequence[Row], *, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """See ``Backend.run``."""
        _, slots_T = self._lay_out(rows)

        def on_stamped(layer: int) -> None:
            pool = self._caches[layer].flatten(2, 3)
            pool[:, :, slots_T] += self.stamp(layer)
            if on_layer is not None:
                on_layer(layer)

        return super().run(rows, on_layer=on_stamped)

    def stamp(self, layer: int) -> Tensor:
        """What is added to a token's id: ``[2, G, 1, D]``, below one and exact in float32."""
        num_dims = self._caches[layer].shape[4]
        shape = (len(self._caches), 2, NUM_KV_HEADS, 1, num_dims)
        places = torch.arange(float(np.prod(shape))).reshape(shape)
        return (places[layer] / places.numel())[:, self._heads.start : self._heads.stop]

    def check(self, token_ids: Sequence[int], block_ids: Sequence[int]) -> None:
        """Assert that the blocks hold the KV of these tokens, in every layer and head."""
        positions = torch.arange(len(token_ids))
        blocks = torch.tensor(list(block_ids))[positions // self._block_size]
        want_T = torch.tensor(list(token_ids), dtype=torch.float32)[:, None]
        for layer, cache in enumerate(self._caches):
            came = cache[:, :, blocks, positions % self._block_size]
            wrong = (came != want_T + self.stamp(layer)).any(dim=(0, 1, 3)).nonzero()
            assert not len(wrong), f"layer {layer}: wrong KV at positions {wrong.flatten()}"


class CheckedStepper(Stepper):
    """Asserts, of every sequence that is scheduled, that all its KV is what it must be."""

    def run(self, work: Work, emitter: Emitter) -> list[TokenSequence]:
        """See ``Stepper.run``."""
        ended = super().run(work, emitter)
        assert isinstance(self._backend, StampedBackend)
        for sequence, chunk in work:
            stop = chunk.start + chunk.num_tokens
            self._backend.check(sequence.token_ids[:stop], sequence.blocks.block_ids)
        return ended


@dataclass
class Asked:
    """A request as its client sees it; ``num_seen`` outputs of its present rank are taken."""

    prompt_ids: list[int]
    max_tokens: int
    output_ids: list[int] = field(default_factory=list)
    num_retries: int = 0
    num_seen: int = 0
    is_aborted: bool = False
    finish_reason: FinishReason | None = None
    error: str = ""


@dataclass(kw_only=True)
class MortalWorld(World):
    """See the module. Clients whose decode rank dies go on where they were, as the edge has it."""

    backend_kind: type[ReplayBackend] = StampedBackend
    stepper_kind: type[Stepper] = CheckedStepper

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked: dict[str, Asked] = {}
        self.is_prefill_up = True
        self.unheard: list[str] = []

    # -- clients -------------------------------------------------------------------------

    def ask(self, prompt_ids: Sequence[int], *, max_tokens: int) -> None:
        """Send a request as a client."""
        request_id = f"q{len(self.asked)}"
        self.asked[request_id] = Asked(list(prompt_ids), max_tokens)
        self._send_again(request_id)

    def unfinished(self) -> list[str]:
        """Return the requests that somebody still waits for."""
        return [
            request_id
            for request_id, one in self.asked.items()
            if one.finish_reason is None and not one.is_aborted
        ]

    def leave(self, request_id: str) -> None:
        """Let a client go away."""
        self.asked[request_id].is_aborted = True
        self.abort(request_id)

    def hear(self) -> None:
        """Let clients take what has come for them."""
        for request_id, one in self.asked.items():
            outputs = self.outputs[request_id]
            for output in outputs[one.num_seen :]:
                assert one.finish_reason is None, "an output after the last one"
                one.output_ids += output.token_ids
                one.finish_reason = output.finish_reason
                one.error = output.error
            one.num_seen = len(outputs)

    def _send_again(self, request_id: str) -> None:
        one = self.asked[request_id]
        resumed = [Resumed(choice=0, output_ids=list(one.output_ids))] if one.output_ids else []
        one.num_seen = 0
        self.submit(
            one.prompt_ids,
            request_id=request_id,
            max_tokens=one.max_tokens,
            ignore_eos=True,
            resumed=resumed,
            num_retries=one.num_retries,
        )

    # -- deaths --------------------------------------------------------------------------

    def kill_prefill(self, rank: int) -> None:
        """One rank dies: its replica does nothing any more, but the others' writes may land."""
        if not self.is_prefill_up:
            return
        self.is_prefill_up = False
        self._bury(rank)
        self.announce(ranks=[one for one in range(self.tp) if one != rank], is_up=False)

    def restart_prefill(self) -> None:
        """The replica forms again, under a new generation."""
        if self.is_prefill_up:
            return
        for rank in range(self.tp):
            self._bury(rank)
        self.prefill_generation += 1
        self._make_prefill()
        self.is_prefill_up = True
        self.unheard.clear()
        self.announce()

    def kill_decode(self) -> None:
        """The decode rank dies and another takes its place; clients go on at that one."""
        self.hear()
        self.transfer.close()
        self.unheard.append(self.decode_address)
        self.decode_generation += 1
        self._make_decode()
        if self.is_prefill_up:
            self.announce()
        for request_id in self.unfinished():
            self.asked[request_id].num_retries += 1
            self._send_again(request_id)

    def tell_prefill(self) -> None:
        """Prefillers hear which decode ranks are dead."""
        for address in self.unheard:
            for rank in self.prefill:
                rank.worker.forget_peer(address)
            if self.lead is not None:
                self.lead.forget_peer(address)
        self.unheard.clear()

    def _bury(self, rank: int) -> None:
        self.network.forget_writer(rank, generation=self.prefill_generation)
        self.prefill[rank].transfer.close()

    # -- running -------------------------------------------------------------------------

    def turn(self, *, seconds: float = 0.0, prefill: bool = True) -> None:
        """See ``World.turn``; the network may touch only blocks that wait for a writer."""
        super().turn(seconds=seconds, prefill=prefill and self.is_prefill_up)
        self.hear()

    def pump(self) -> None:
        """Let what is due land, and assert that it landed where it may."""
        before = np.array(np.frombuffer(self.region.buffer, np.uint8))
        super().pump()
        changed = np.flatnonzero(before != np.frombuffer(self.region.buffer, np.uint8))
        touched = set(self._blocks_of(changed).tolist())
        may_be = self.pool._pinned | self.pool._quarantined
        assert touched <= may_be, f"blocks {touched - may_be} were written by nobody's leave"

    def _blocks_of(self, offsets: np.ndarray) -> np.ndarray:
        layout = self.layout(self.num_blocks)
        # All layers are alike, so that the atoms of the whole region are of one size.
        return offsets // layout.atom_bytes(0) % self.num_blocks
