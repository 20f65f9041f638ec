"""What the HTTP front needs from below, as small protocols: text, template, control socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headrace.core.messages import Message


class Tokenizer(Protocol):
    """Text to token ids and back to bytes. ``encode`` may run in a worker thread."""

    @property
    def vocab_size(self) -> int:
        """Ids lie in ``range(vocab_size)``."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; special tokens written out in it become their ids."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``, special tokens written out."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes of one token, which need not be whole characters."""
        ...


class ChatTemplate(Protocol):
    """Turns messages into the prompt text that the model was trained on."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text.

        Args:
            messages: As the client sent them, contents joined to plain strings.
            tools: Tool descriptions, or None.
            add_generation_prompt: End with the opening of the assistant's turn.
            extra: Further variables, from ``chat_template_kwargs``.

        Raises:
            UserError: The template refused, with its own words.
        """
        ...


class ControlPort(Protocol):
    """The edge's control socket, as far as the dispatcher uses it."""

    @property
    def address(self) -> str:
        """Where peers reach this process."""
        ...

    async def send(self, address: str, message: Message) -> None:
        """Queue ``message`` for ``address``; never waits for the peer to read it."""
        ...
