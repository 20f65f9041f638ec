"""What the HTTP front needs from below, as small protocols: text, template, control socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headrace.core.messages import Message


class Tokenizer(Protocol):
    """Text to token ids and back to bytes. Immutable: worker threads use it too."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of ``text``; special tokens written in it are recognised."""
        ...

    def fewest_tokens(self, num_bytes: int) -> int:
        """Return how few tokens a text of so many bytes can have; 0 is unknown."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of a whole sequence at once."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes of one token, not always whole characters."""
        ...


class ChatTemplate(Protocol):
    """Turns messages into the prompt text that the model was trained on."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text, or raise ``RequestError``: no template, or it refused."""
        ...


class ControlPort(Protocol):
    """The edge's control socket, as far as the dispatcher uses it."""

    @property
    def address(self) -> str:
        """Where peers reach this process."""
        ...

    def send(self, address: str, message: Message) -> bool:
        """Queue ``message`` without waiting; False when the peer's queue is full."""
        ...
