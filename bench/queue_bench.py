"""What it costs to keep 100,000 requests waiting: every queue order, beside a list that is kept sorted.

With that many in the room: `add` one, `pop` the first, `remove` one from anywhere, in microseconds each (mean over some
thousand, the number that wait staying about the same), and `rekey` all, in milliseconds. "sorted list" does the same
with `bisect` on one list of ranks, and sorts again to re-key. Processor time, one core.

Prints a table; `--json FILE` writes the figures, `--against FILE` compares `pop` with that of another run, in units of
a fixed piece of numpy work (`bench/comparison.py`). `bench/recorded/queue.json` is the last recorded run.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ballast_core.directing.waiting_room import WaitingRoom
from ballast_core.model import RequestId
from ballast_core.policies.queue.protocol import QueueOrder, Service, Work
from ballast_core.policies.queue.ranking import Rank, rank
from ballast_core.policies.queue.registry import QUEUE_ORDERS
from ballast_core.policies.registry import QUEUE_ORDER, build
from bench.comparison import Calibration, Earlier, Recording, Row

SERVICE, LATER = Service(9000.0, 30.0, 1.0), Service(8000.0, 33.0, 0.5)
COLUMNS = ("add_us", "pop_us", "remove_us", "rekey_ms")
LINE = "{:<16} {:<12} {:>9} {:>9} {:>9} {:>9} {:>9}"


class Room(Protocol):
    """What both do."""

    def add(self, request_id: RequestId, work: Work, service: Service) -> None: ...
    def pop(self) -> RequestId | None: ...
    def remove(self, request_id: RequestId) -> bool: ...
    def rekey(self, service: Service) -> None: ...


class SortedList:
    """One list of ranks."""

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._works: dict[RequestId, tuple[Work, Rank]] = {}
        self._ranks: list[Rank] = []

    def add(self, request_id: RequestId, work: Work, service: Service) -> None:
        """Insert the request by its rank."""
        where = rank(self._order, request_id, work, service)
        self._works[request_id] = work, where
        insort(self._ranks, where)

    def pop(self) -> RequestId | None:
        """The first."""
        request_id = RequestId(self._ranks.pop(0)[3])
        del self._works[request_id]
        return request_id

    def remove(self, request_id: RequestId) -> bool:
        """Wherever it stands."""
        found = self._works.pop(request_id, None)
        if found is not None:
            del self._ranks[bisect_left(self._ranks, found[1])]
        return found is not None

    def rekey(self, service: Service) -> None:
        """All anew."""
        self._works = {each: (work, rank(self._order, each, work, service)) for each, (work, _) in self._works.items()}
        self._ranks = sorted(where for _, where in self._works.values())


def work(draw: random.Random, arrived_s: float) -> Work:
    return Work(arrived_s, 1 + int(draw.lognormvariate(7.5, 1.2)), expected_output_tokens=draw.expovariate(1 / 400))


def measure(room: Room, waiting: int, times: int) -> Row:
    """Figures of one room."""
    draw = random.Random(0)
    for number in range(waiting):
        room.add(RequestId(f"r{number}"), work(draw, number * 1e-3), SERVICE)
    new = [(RequestId(f"n{number}"), work(draw, waiting * 1e-3 + number * 1e-3)) for number in range(times)]

    def timed(act: Callable[[], object]) -> float:
        began_s = time.process_time()
        act()
        return time.process_time() - began_s

    def add_all() -> None:
        for each, of in new:
            room.add(each, of, SERVICE)

    add_s = timed(add_all)
    leaving = [RequestId(f"r{number}") for number in draw.sample(range(waiting // 2, waiting), times // 2)]
    remove_s = timed(lambda: [room.remove(each) for each in leaving])
    pop_s = timed(lambda: [room.pop() for _ in range(times // 2)])
    rekey_s = timed(lambda: room.rekey(LATER))
    figures = (add_s / times * 1e6, pop_s / (times // 2) * 1e6, remove_s / (times // 2) * 1e6, rekey_s * 1e3)
    return {name: round(each, 3) for name, each in zip(COLUMNS, figures, strict=True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=100_000, help="requests that wait (default 100,000)")
    parser.add_argument("--times", type=int, default=4_000, help="operations of each kind (default 4000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--against", type=Path, help="a file of an earlier run to compare with")
    options = parser.parse_args()
    earlier = Earlier(options.against, lambda row: (row["order"], row["room"]))
    calibration, rows = Calibration(), list[Row]()
    print(LINE.format("order", "room", *(name.replace("_", " ") for name in COLUMNS), "earlier"))
    for name in sorted(QUEUE_ORDERS):
        made: tuple[tuple[str, type[WaitingRoom] | type[SortedList]], ...]
        made = ("heap", WaitingRoom), ("sorted list", SortedList)
        pair = list[Row]()
        for kind, make in made:
            calibration.take()
            figures = measure(make(build(QUEUE_ORDER, name)), options.waiting, options.times)
            row: Row = {"order": name, "room": kind, "waiting": options.waiting, **figures}
            ratio = earlier.time_ratio(row, "pop_us", calibration)
            shown = [f"{row[column]:.2f}" for column in COLUMNS]
            print(LINE.format(name, kind, *shown, f"x {ratio:.2f}" if ratio else "-"), flush=True)
            pair.append(row)
        ratios = [f"x {float(pair[1][column]) / max(float(pair[0][column]), 1e-3):.1f}" for column in COLUMNS]
        print(LINE.format("", "  list/heap", *ratios, ""))
        rows += pair
    if options.json:
        Recording(calibration.seconds, rows).write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
