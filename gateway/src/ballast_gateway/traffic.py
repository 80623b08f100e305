"""The traffic recorder: the requests of the last minutes as a trace file that the simulator replays.

Of each request it keeps when it came, how long prompt and answer were, which prefix blocks the prompt began with, its
class, how it ended and whether it met its objective. Never text, keys or names of clients: a block leaves as a number
that is its own in one answer alone, a class as the number of its appearance; where several gateways' rows are to be
merged, both leave as names that only the fleet's own key tells the meaning of. Memory is bounded by requests, by blocks
and by time, whichever comes first.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ballast_api.recorded_traffic import TAKEN
from ballast_core.model import Request
from ballast_core.state.ledger import Entry
from ballast_gateway.records import RequestRecord

ROW_BYTES: Final = 400
"""Memory of one request that is kept, at most, without its blocks."""
BLOCK_BYTES: Final = 8
_LINES: Final = 200
"""Rows that are written in one go."""


class _Row(NamedTuple):
    """One request. Times are seconds on the driver's clock."""

    arrived_s: float
    ended_s: float
    prompt_tokens: int
    """As the gateway took them at its arrival."""
    measured_tokens: int
    """As an engine counted them; 0 where none has said."""
    output_tokens: int
    limit_tokens: int | None
    blocks: bytes
    """64-bit block hashes."""
    block_size: int
    class_number: int
    priority: int
    stream: bool | None
    """None: not known, as it runs."""
    outcome: str
    first_token_s: float | None
    objective: str
    """Name of its class's objective; empty without one."""
    met: bool | None


class _Naming(NamedTuple):
    """Names in place of numbers."""

    key: bytes
    classes: dict[int, int]
    """By their numbers."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is kept at most."""

    requests: int
    seconds: float
    blocks: int
    """Of all requests together. A request whose blocks alone are more is kept without them."""


class TrafficRecorder:
    """Takes the record of each request that has ended. `unix_s` plus the driver's clock gives seconds since 1970.

    `running` are the requests in flight.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        now_s: Callable[[], float],
        unix_s: float,
        running: Callable[[], Iterable[Entry]] = tuple,
    ) -> None:
        self._bounds = bounds
        self._now_s = now_s
        self._unix_s = unix_s
        self._running = running
        self._rows: deque[_Row] = deque()
        self._blocks = 0
        self._classes: dict[str, int] = {}

    def __call__(self, record: RequestRecord) -> None:
        """Keep it, if it was a request for engines, and drop what is then too old or too much."""
        asked, bounds = record.asked, self._bounds
        if asked is None or not bounds.seconds:
            return
        blocks = self._blocks_of(asked)
        self._rows.append(
            _Row(
                record.arrived_s,
                record.ended_s,
                asked.prompt_tokens,
                record.measured_prompt_tokens,
                record.output_tokens,
                asked.max_output_tokens,
                blocks,
                asked.block_size,
                self._class_number(asked),
                asked.priority,
                record.stream,
                record.outcome,
                record.first_token_s,
                "" if record.objective is None else record.objective.name,
                record.met,
            )
        )
        self._blocks += len(blocks) // BLOCK_BYTES
        self._drop(record.ended_s - bounds.seconds)

    @property
    def bounds(self) -> Bounds:
        """What is kept at most. What is then too old or too much is dropped at once."""
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: Bounds) -> None:
        self._bounds, most_bytes = bounds, bounds.blocks * BLOCK_BYTES
        if bounds.seconds:
            rows = [row if len(row.blocks) <= most_bytes else row._replace(blocks=b"") for row in self._rows]
        else:
            rows = []
        self._rows = deque(rows)
        self._blocks = sum(len(row.blocks) for row in rows) // BLOCK_BYTES
        self._drop(self._now_s() - bounds.seconds)

    def _drop(self, oldest_s: float) -> None:
        """Those that ended before, and the oldest ones beyond the bounds."""
        rows, bounds = self._rows, self._bounds
        while rows and (len(rows) > bounds.requests or self._blocks > bounds.blocks or rows[0].ended_s < oldest_s):
            self._blocks -= len(rows.popleft().blocks) // BLOCK_BYTES

    def _blocks_of(self, asked: Request) -> bytes:
        """The 64-bit hashes; empty if these alone are more than are kept."""
        hashes = asked.block_hashes
        return array("Q", hashes).tobytes() if 0 < len(hashes) <= self._bounds.blocks else b""

    def _class_number(self, asked: Request) -> int:
        """Classes are few: `traffic_classes` bounds them."""
        return self._classes.setdefault(asked.traffic_class, len(self._classes))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def most_bytes(self) -> int:
        """Memory that the kept requests take at most."""
        return self._bounds.requests * ROW_BYTES + self._bounds.blocks * BLOCK_BYTES

    def trace(
        self, *, seconds: float | None = None, limit: int | None = None, key: bytes | None = None
    ) -> Iterator[bytes]:
        """The requests that arrived in the last `seconds`, the last `limit` of them at most, as JSON lines in order.

        With a `key` (16 to 64 bytes) the lines are named rows (`ballast_api.recorded_traffic`). Which ones is decided
        now; the lines are made as they are taken, on any thread.
        """
        since_s = self._now_s() - min(self._bounds.seconds, float("inf") if seconds is None else seconds)
        rows = [row for row in self._rows if row.arrived_s >= since_s]
        if self._bounds.seconds:
            rows += [self._so_far(entry) for entry in self._running() if entry.arrived_s >= since_s]
        naming = None
        if key is not None:
            naming = _Naming(key, {number: _name(key, name.encode()) for name, number in self._classes.items()})
        return _lines(rows, limit, self._unix_s, naming)

    def _so_far(self, entry: Entry) -> _Row:
        asked = entry.request
        return _Row(
            entry.arrived_s,
            entry.arrived_s,
            asked.prompt_tokens,
            0,
            entry.generated_tokens,
            asked.max_output_tokens,
            self._blocks_of(asked),
            asked.block_size,
            self._class_number(asked),
            asked.priority,
            None,
            "running",
            None,
            "",
            None,
        )


def _lines(rows: list[_Row], limit: int | None, unix_s: float, naming: _Naming | None) -> Iterator[bytes]:
    rows.sort(key=lambda row: row.arrived_s)
    if limit is not None:
        del rows[:-limit]
    tokens_per_token = _measured_ratio(rows)
    ids, names = _numbered(rows, naming)
    waiting, start = iter(rows), 0
    while part := list(islice(waiting, _LINES)):
        lines = []
        for row in part:
            count = len(row.blocks) // BLOCK_BYTES
            blocks, start = ids[start : start + count], start + count
            if naming is None:
                line = _line(row, blocks.tolist(), tokens_per_token, unix_s)
            else:
                line = _named(row, [names[number] for number in blocks], unix_s)
                line["class"] = naming.classes[row.class_number]
            lines.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        yield b"".join(lines)


def _measured_ratio(rows: Iterable[_Row]) -> float:
    """Tokens that engines counted for one that was taken: prompts in text are estimated, and so are their blocks."""
    measured = [(row.measured_tokens, row.prompt_tokens) for row in rows if row.measured_tokens and row.prompt_tokens]
    return sum(real for real, _ in measured) / sum(taken for _, taken in measured) if measured else 1.0


def _numbered(rows: Iterable[_Row], naming: _Naming | None) -> tuple[NDArray[np.intp], list[int]]:
    """A number for each block of all rows, from 0: equal blocks, equal numbers. And by number their names, if any."""
    hashes = np.frombuffer(b"".join(row.blocks for row in rows), np.uint64)
    known, numbers = np.unique(hashes, return_inverse=True)
    return numbers, [] if naming is None else [_name(naming.key, each.tobytes()) for each in known]


def _name(key: bytes, what: bytes) -> int:
    """63 bits, of which nobody without the key can tell what they stand for."""
    return int.from_bytes(blake2b(what, key=key, digest_size=8).digest(), "big") >> 1


def _named(row: _Row, blocks: list[int], unix_s: float) -> dict[str, object]:
    """A row as `recorded_traffic.merged` takes it: all blocks, and what a correction by measured prompts needs."""
    line = _line(row, blocks, 1.0, unix_s)
    if blocks:
        line |= {"hash_ids": blocks, "block_size": row.block_size}
    if row.measured_tokens and row.prompt_tokens:
        line[TAKEN] = row.prompt_tokens
    return line


def _line(row: _Row, blocks: list[int], ratio: float, unix_s: float) -> dict[str, object]:
    input_tokens = max(1, row.measured_tokens or row.prompt_tokens)
    line: dict[str, object] = {
        "arrival_s": round(row.arrived_s + unix_s, 6),
        "input_tokens": input_tokens,
        "output_tokens": row.output_tokens,
    }
    if row.limit_tokens is not None:
        line["max_tokens"] = row.limit_tokens
    if len(blocks):
        size = max(1, round(row.block_size * ratio))
        line |= {"hash_ids": blocks[: -(-input_tokens // size)], "block_size": size}
    line |= {"class": row.class_number, "priority": row.priority}
    if row.stream is not None:
        line["stream"] = row.stream
    line["outcome"] = row.outcome
    if row.first_token_s is not None:
        line["ttft_s"] = round(row.first_token_s - row.arrived_s, 6)
    if row.outcome != "running":
        line["e2e_s"] = round(row.ended_s - row.arrived_s, 6)
    if row.objective:
        line["objective"] = row.objective
    if row.met is not None:
        line["met"] = row.met
    return line
