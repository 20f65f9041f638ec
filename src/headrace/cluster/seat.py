"""One rank's place in a replica: it outlives the processes and generations that fill it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from headrace.cluster.process import RankHandle
from headrace.core.errors import HeadraceError
from headrace.core.launch import LaunchSpec
from headrace.core.messages import LoadProgress, RankInfo, Ready


@dataclass(slots=True, eq=False)
class Seat:
    """A rank as its supervisor keeps it.

    Attributes:
        spec: What fills the seat, under the generation that it has or is to have.
        process: What runs it now, or ran it last.
        ready: Its word that it is ready under ``spec.generation``.
        writing: How peers address what may still write; None when nothing here can.
        is_waiting: It left its generation by itself and waits to be told of the next one.
        heard_s: When it was last heard, once it is ready [s].
        loading: How far its weights were when it last said.
        previous: What filled the seat in the last generation; None in the first.
        word: Its own account of why it cannot go on, or the supervisor's of why it was ended.
        has_word: Set together with ``word``.
        watcher: Follows the process to its end.
    """

    spec: LaunchSpec
    process: RankHandle
    ready: Ready | None = None
    writing: RankInfo | None = None
    is_waiting: bool = False
    heard_s: float = 0.0
    loading: LoadProgress | None = None
    previous: LaunchSpec | None = None
    word: HeadraceError | None = None
    has_word: asyncio.Event = field(default_factory=asyncio.Event)
    watcher: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The rank's name."""
        return self.spec.name

    @property
    def standing(self) -> str:
        """The rank's name, with how far its start has come, for who waits for it."""
        if self.ready is not None:
            return self.name
        if self.loading is None:
            return f"{self.name} (no weights read)"
        done, total = self.loading.done_bytes, self.loading.total_bytes
        if done < total:
            return f"{self.name} ({done / total:.0%} of its weights read)"
        return f"{self.name} (weights read)"

    @property
    def can_follow(self) -> bool:
        """Whether what runs here can go on under another generation."""
        return self.process.is_alive and (self.ready is not None or self.is_waiting)

    def take_ready(self, ready: Ready, now_s: float) -> bool:
        """Believe the rank that it is ready, if it has this seat's generation."""
        if ready.info.generation != self.spec.generation or not self.process.is_alive:
            return False
        self.ready, self.writing, self.heard_s = ready, ready.info, now_s
        return True

    def take_left(self, generation: int) -> bool:
        """Believe the rank that nothing of a generation is left of it.

        Returns:
            Whether that was the generation that it is needed in.
        """
        if self.writing is not None and self.writing.generation == generation:
            self.writing = None
        if generation != self.spec.generation or not self.process.is_alive:
            return False
        self.ready, self.is_waiting = None, True
        return True

    def say(self, word: HeadraceError) -> None:
        """Keep the first account of the end of the process."""
        self.word = self.word or word
        self.has_word.set()

    def move_to(self, generation: int) -> None:
        """From now on the seat is to be filled under ``generation``."""
        self.previous = self.spec
        self.spec = msgspec.structs.replace(self.spec, generation=generation)
        self.ready, self.is_waiting = None, False
