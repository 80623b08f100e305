"""The requests that are held, as rows: what a holder's messages make of them, and progress that waits to be told.

No clock and no sockets: times are seconds on any clock that does not jump.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ballast_gateway.podapi.messages import (
    Began,
    Draining,
    Ended,
    Engine,
    Message,
    Moved,
    Opened,
    Prefilled,
    Progressed,
    Redirected,
    Released,
    Row,
    counted,
    measured,
)

_ROW_BYTES: Final = 512
"""Of names and numbers."""
_BLOCK_BYTES: Final = 21
_ESCAPED_BYTES: Final = 6
"""Of one character."""


class _Held:
    """A row as it changes."""

    __slots__ = ("arrived_s", "began_s", "decode", "prefill", "prefilled", "row", "tokens")

    def __init__(self, row: Row, now_s: float) -> None:
        self.row = row
        """As it came, with what does not change."""
        self.arrived_s = now_s - row.age_s
        self.decode, self.prefill = row.decode, row.prefill
        self.prefilled = row.phase == "decoding"
        self.began_s: float | None = now_s if row.generated_tokens else None
        self.tokens = row.generated_tokens

    def at(self, now_s: float) -> Row:
        """The row as it is now."""
        rate = 0.0
        if self.began_s is not None and now_s > self.began_s:
            rate = round(measured((self.tokens - 1) / (now_s - self.began_s)), 3)
        decodes = self.prefilled or self.began_s is not None
        return msgspec.structs.replace(
            self.row,
            phase="decoding" if decodes else "prefilling" if self.decode else "waiting",
            decode=self.decode,
            prefill=self.prefill,
            generated_tokens=self.tokens,
            rate_tokens_per_s=rate,
            age_s=round(max(0.0, now_s - self.arrived_s), 3),
        )


class Rows:
    """All of them, by key."""

    def __init__(self) -> None:
        self.draining = False
        self.engine: Engine | None = None
        """The last that was said of the engine."""
        self._held: dict[str, _Held] = {}
        self._untold: set[str] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def take(self, message: Message, now_s: float) -> None:
        """What is said of a request; of one that is not held, nothing comes of it."""
        match message:
            case Opened(request=row):
                self._held[row.key] = _Held(row, now_s)
            case Ended(key=key) | Released(key=key):
                self._held.pop(key, None)
                self._untold.discard(key)
            case Progressed(tokens=tokens):
                for key, count in tokens.items():
                    self.progressed(key, count)
            case Draining(on=on):
                self.draining = on
            case Engine():
                self.engine = message
            case Prefilled(key=key) | Began(key=key) | Redirected(key=key) | Moved(key=key):
                held = self._held.get(key)
                if held is not None:
                    _change(held, message, now_s)
            case _:
                pass

    def progressed(self, key: str, tokens: int) -> bool:
        """So many output tokens in all. False for a request that is not held."""
        held = self._held.get(key)
        if held is None:
            return False
        held.tokens = counted(tokens)
        self._untold.add(key)
        return True

    def untold(self) -> Progressed | None:
        """The progress since this was last asked, in one message; None if there was none."""
        if not self._untold:
            return None
        untold, self._untold = self._untold, set()
        return Progressed(tokens={key: self._held[key].tokens for key in sorted(untold)})

    def listing(self) -> list[str]:
        """The keys of all, the last to come first."""
        return list(reversed(self._held))

    def some(self, listing: list[str], now_s: float, most_bytes: float) -> tuple[Row, ...]:
        """The next rows of a listing, which are taken from its end; of those that have ended there are none. One more
        than fits in so many bytes of a line, at most."""
        rows: list[Row] = []
        while listing and most_bytes > 0:
            held = self._held.get(listing.pop())
            if held is not None:
                rows.append(held.at(now_s))
                most_bytes -= _bytes_of(held.row)
        return tuple(rows)

    def all(self, now_s: float) -> tuple[Row, ...]:
        """Each as it is now, in the order in which they came. What progress there was is told with them."""
        return tuple(held.at(now_s) for held in self._held.values())


def _bytes_of(row: Row) -> int:
    """A row has no more than that in a line; its strings may be escaped."""
    words = (row.id, row.by, row.decode, row.prefill, row.model, row.traffic_class, row.tenant)
    return _ROW_BYTES + _BLOCK_BYTES * len(row.blocks) + _ESCAPED_BYTES * sum(map(len, words))


def _change(held: _Held, message: Prefilled | Began | Redirected | Moved, now_s: float) -> None:
    match message:
        case Prefilled():
            held.prefilled = True
        case Began():
            held.began_s = now_s
            held.tokens = max(held.tokens, 1)
        case Redirected(decode=decode, prefill=prefill):
            held.decode, held.prefill = decode, prefill
            held.prefilled = False
        case Moved(target=target):
            held.decode = target
