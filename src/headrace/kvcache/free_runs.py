"""Free block ids as maximal runs, so that a prompt's blocks run on where they can.

Where block ids run on, so do the bytes of a head: one run is one write of a transfer.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeRuns:
    """A set of ids in ``range(num_ids)``, all present at first, kept as maximal runs.

    Cost:
        ``add`` and ``take`` touch a constant number of runs each (``take`` as many as it must
        break up); the ordered list of runs makes that O(log runs) comparisons and one memmove.
    """

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids
        self._size = num_ids
        self._length_at = {0: num_ids} if num_ids else {}
        self._start_before = {num_ids: 0} if num_ids else {}  # end (exclusive) -> start
        self._by_length = [(num_ids, 0)] if num_ids else []

    def __len__(self) -> int:
        return self._size

    def ids(self) -> set[int]:
        """Return every id in the set (for checks; O(size))."""
        return {
            block_id
            for length, start in self._by_length
            for block_id in range(start, start + length)
        }

    def add(self, block_id: int) -> None:
        """Put an absent id in, joining it to the runs on either side."""
        start, end = block_id, block_id + 1
        if start in self._start_before:
            start = self._start_before[start]
            self._drop(start)
        if end in self._length_at:
            after = end
            end += self._length_at[after]
            self._drop(after)
        self._keep(start, end - start)
        self._size += 1

    def take(self, num_ids: int) -> list[int]:
        """Remove and return ``num_ids`` ids, at most ``len(self)``, in as few runs as possible.

        The shortest run that holds them all is used, so that long runs stay whole for long
        prompts; where none does, the longest runs go first.
        """
        taken: list[int] = []
        while len(taken) < num_ids:
            want = num_ids - len(taken)
            place = min(bisect_left(self._by_length, (want, -1)), len(self._by_length) - 1)
            length, start = self._by_length[place]
            used = min(length, want)
            self._drop(start)
            if used < length:
                self._keep(start + used, length - used)
            taken.extend(range(start, start + used))
        self._size -= num_ids
        return taken

    def _keep(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        insort(self._by_length, (length, start))

    def _drop(self, start: int) -> None:
        length = self._length_at.pop(start)
        del self._start_before[start + length]
        del self._by_length[bisect_left(self._by_length, (length, start))]
