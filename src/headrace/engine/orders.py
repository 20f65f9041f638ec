"""What ends a rank's generation in good order: a shutdown, or the word to re-form."""

from __future__ import annotations

from headrace.core.messages import AnyMessage, Reform, Shutdown


class Orders:
    """The supervisor's orders to one generation of a rank.

    Args:
        generation: The rank's present generation; an order to become that or an older one is a
            late repeat.

    Attributes:
        is_leaving: The generation is over.
        following: The generation to go on as; None after a shutdown.
    """

    def __init__(self, generation: int) -> None:
        self.is_leaving = False
        self.following: int | None = None
        self._generation = generation

    def take(self, message: AnyMessage) -> bool:
        """Take a message if it is an order; return whether it was one."""
        match message:
            case Shutdown():
                self.is_leaving, self.following = True, None
                return True
            case Reform():
                if message.generation > self._generation and not self.is_leaving:
                    self.is_leaving, self.following = True, message.generation
                return True
            case _:
                return False
