"""When members of a cohort take their next KV block: each takes one every `block_size` steps.

A member's slot is the step at which it takes a block, modulo the block size.
"""

from collections.abc import Sequence
from itertools import accumulate

from ballast_sim.engine.requests import RequestState


class BlockWheel:
    """Members by slot."""

    __slots__ = ("_block_size", "_members", "_sharers", "_size", "_taken", "shares")

    def __init__(self, block_size: int) -> None:
        """No members."""
        self._block_size = block_size
        self._size = 0
        self.shares = 0
        """Members whose blocks other requests may hit."""
        self._members: list[list[RequestState]] = [[] for _ in range(block_size)]
        self._sharers: list[list[RequestState]] = [[] for _ in range(block_size)]
        self._taken: list[int] | None = None  # blocks taken in two rounds, summed up

    def add(self, request: RequestState, slot: int) -> None:
        """A member joins; `slot` as above."""
        self._members[slot].append(request)
        self._taken = None
        self._size += 1
        if request.content.shared:
            self._sharers[slot].append(request)
            self.shares += 1

    def remove(self, request: RequestState, slot: int) -> None:
        """A member leaves."""
        self._members[slot].remove(request)
        self._taken = None
        self._size -= 1
        if request.content.shared:
            self._sharers[slot].remove(request)
            self.shares -= 1

    def takers(self, step: int) -> list[RequestState]:
        """Members that take a block in this step."""
        return self._members[step % self._block_size]

    def sharers(self, step: int) -> list[RequestState]:
        """Those of `takers` whose blocks other requests may hit: their blocks get a hash as they fill."""
        return self._sharers[step % self._block_size]

    def takers_in_order(self, first_step: int) -> list[RequestState]:
        """All members, in the order in which they take blocks from this step on."""
        first = first_step % self._block_size
        return [request for members in self._members[first:] + self._members[:first] for request in members]

    def sharers_in_order(self, first_step: int) -> Sequence[list[RequestState]]:
        """`sharers` of the next `block_size` steps."""
        first = first_step % self._block_size
        return self._sharers[first:] + self._sharers[:first]

    def blocks(self, first_step: int, steps: int) -> int:
        """KV blocks that all members take in so many steps."""
        taken = self._taken
        if taken is None:
            taken = self._taken = [0, *accumulate(map(len, self._members + self._members))]
        size = self._block_size
        first = first_step % size
        return steps // size * self._size + taken[first + steps % size] - taken[first]
