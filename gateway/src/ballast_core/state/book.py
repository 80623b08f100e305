"""The book of micro-requests: what a partition policy has planned for each endpoint and what is not done yet.

By endpoint, it holds the planned work in the order of planning, and the requests that run there without a plan. The
progress of a request is in the ledger; the book changes only when a request arrives, moves, reaches a cut, or ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import IntArray
from ballast_core.model import RequestId
from ballast_core.model.segments import Segment


@dataclass(frozen=True, slots=True)
class Work:
    """The whole work of one micro-request on its endpoint, in tokens."""

    prefill_tokens: int
    """Prompt tokens to compute."""
    decode_tokens: int
    """Tokens to decode after that, as expected."""
    context_tokens: int
    """Tokens of its request that exist before it begins: cached here, or computed by earlier segments."""
    generated_tokens: int = 0
    """Output tokens among `context_tokens`."""


def works_of(segments: Sequence[Segment], prompt_tokens: int, length_tokens: int, cached_tokens: int = 0) -> list[Work]:
    """The work of each segment, in order.

    `length_tokens`: prompt and expected output; `cached_tokens`: held by the first segment's endpoint. The token before
    a cut is computed by the segment that ends there; that a decode first recomputes the last token of its context is
    neglected. A fully cached prompt still computes one token.
    """
    works, start = list[Work](), 0
    for segment in segments:
        end = max(length_tokens, start + 1) if segment.end_tokens is None else segment.end_tokens
        prompt_end = min(end, prompt_tokens)
        begun = min(cached_tokens, max(prompt_end - 1, 0)) if start == 0 else start
        works.append(
            Work(
                prefill_tokens=max(prompt_end - begun, 0),
                decode_tokens=max(end - max(start, prompt_tokens), 0),
                context_tokens=begun,
                generated_tokens=max(start - prompt_tokens, 0),
            )
        )
        start = end
    return works


@dataclass(slots=True)
class _Share:
    """The micro-requests of one request, each with the slot for which it is booked; None: for no slot."""

    works: list[Work]
    slots: list[int | None]
    running: int = 0
    """Index of the micro-request that runs."""


Key = tuple[RequestId, int]
"""A micro-request: its request, and the index of its segment."""


class Book:
    """Work by slot, in the order of booking."""

    def __init__(self) -> None:
        self._works: dict[int, dict[Key, Work]] = {}
        self._shares: dict[RequestId, _Share] = {}
        self._uncut: dict[int, dict[RequestId, None]] = {}
        """By slot, in the order of arrival there."""
        self._uncut_slots: dict[RequestId, tuple[int, ...]] = {}
        self._versions: IntArray = np.zeros(16, np.int64)
        self._version = 0
        self._turns: IntArray = np.zeros(16, np.int64)
        self._turn = 0

    def __len__(self) -> int:
        """Number of requests with a plan."""
        return len(self._shares)

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._shares)

    def works(self, slot: int) -> Mapping[Key, Work]:
        """The micro-requests booked for this slot, oldest first. Read only."""
        return self._works.get(slot, {})

    def uncut(self, slot: int) -> Collection[RequestId]:
        """The requests without a plan that are prefilled or decoded in this slot, oldest first."""
        return self._uncut.get(slot, {})

    def busy(self, slot: int) -> bool:
        """Whether this slot has any work."""
        return bool(self._works.get(slot) or self._uncut.get(slot))

    def runs(self, key: Key) -> bool:
        """Whether this micro-request is the running one of its request; later ones have not begun."""
        return self._shares[key[0]].running == key[1]

    def versions(self, slots: IntArray) -> IntArray:
        """A number for each slot that changes whenever the slot's work, planned or not, changes.

        Whatever is derived from a slot's work stays valid while this number stays the same.
        """
        self._grow(int(slots.max(initial=0)) + 1)
        return self._versions.take(slots)

    def turns(self, slots: IntArray) -> IntArray:
        """When each slot last got work, as a running number: ties go to the lowest."""
        self._grow(int(slots.max(initial=0)) + 1)
        return self._turns.take(slots)

    def open(self, request_id: RequestId, works: Sequence[tuple[int, Work]]) -> None:
        """Book the micro-requests of a request, in order: (slot, work). Replaces earlier bookings of the request."""
        self.close(request_id)
        self._turn += 1
        self._shares[request_id] = _Share([work for _, work in works], [None] * len(works))
        for index, (slot, _) in enumerate(works):
            self._put(request_id, index, slot)
            self._turns[slot] = self._turn

    def open_uncut(self, request_id: RequestId, slots: Iterable[int]) -> None:
        """Book a request that runs in these slots without a plan. Replaces earlier bookings of the request."""
        self.close(request_id)
        self._uncut_slots[request_id] = tuple(slots)
        for slot in self._uncut_slots[request_id]:
            self._uncut.setdefault(slot, {})[request_id] = None
            self._changed(slot)

    def ended(self, request_id: RequestId, next_slot: int | None = None) -> None:
        """The running micro-request is over and the next one runs: in `next_slot`, if that differs from the plan."""
        share = self._shares.get(request_id)
        if share is None:
            return
        self._take(request_id, share.running)
        share.running += 1
        if share.running == len(share.slots):
            del self._shares[request_id]
        elif next_slot is not None and share.slots[share.running] != next_slot:
            self._take(request_id, share.running)
            self._put(request_id, share.running, next_slot)

    def moved(self, request_id: RequestId, slot: int) -> None:
        """The running micro-request continues in this slot."""
        share = self._shares.get(request_id)
        if share is not None and share.slots[share.running] != slot:
            self._take(request_id, share.running)
            self._put(request_id, share.running, slot)

    def close(self, request_id: RequestId) -> None:
        """The request is over, or has lost its endpoints. Idempotent."""
        share = self._shares.get(request_id)
        if share is not None:
            for index in range(share.running, len(share.slots)):
                self._take(request_id, index)
            del self._shares[request_id]
        for slot in self._uncut_slots.pop(request_id, ()):
            self._uncut.get(slot, {}).pop(request_id, None)
            self._changed(slot)

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint: drop all work that was booked for it."""
        for request_id, index in list(self._works.get(slot, ())):
            self._take(request_id, index)
        self._works.pop(slot, None)
        self._uncut.pop(slot, None)
        self._changed(slot)
        self._turns[slot] = 0

    def _put(self, request_id: RequestId, index: int, slot: int) -> None:
        share = self._shares[request_id]
        share.slots[index] = slot
        self._works.setdefault(slot, {})[request_id, index] = share.works[index]
        self._changed(slot)

    def _take(self, request_id: RequestId, index: int) -> None:
        share = self._shares[request_id]
        slot = share.slots[index]
        if slot is not None:
            share.slots[index] = None
            del self._works[slot][request_id, index]
            self._changed(slot)

    def _changed(self, slot: int) -> None:
        self._grow(slot + 1)
        self._version += 1
        self._versions[slot] = self._version

    def _grow(self, slots: int) -> None:
        more = max(slots, 2 * len(self._turns)) - len(self._turns) if slots > len(self._turns) else 0
        if more:
            self._turns = np.concatenate([self._turns, np.zeros(more, np.int64)])
            self._versions = np.concatenate([self._versions, np.zeros(more, np.int64)])
