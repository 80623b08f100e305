"""What a gateway's memory is under many streams at once, and whether it stays: `python bench/stream_memory.py`.

`ballast gateway` under its default policy, in front of the engines of `proxy_bench.py`, takes `--streams` P/D requests
that stream one event each `--gap` seconds, for `--minutes`. Printed are the resident memory a stream, and how it grows
from then on: all streams run throughout, so what grows is what their tokens take (they are kept while they may go on
elsewhere) and what leaks. `--no-rescue` keeps no tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from pathlib import Path
from statistics import linear_regression
from typing import cast

import uvloop

from bench.proxy_bench import CHUNKS, Subject, engines, gateway, request

OPENED_EACH_S = 250
SETTLING_EVENTS = 17
"""The last sixteen of each stream are kept."""


class Stream(asyncio.Protocol):
    """Asks, and counts the events that come."""

    begun = events = lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.first = True
        cast("asyncio.Transport", transport).write(request(stream=True, tokens=CHUNKS))

    def data_received(self, data: bytes) -> None:
        Stream.begun += self.first
        self.first = False
        Stream.events += data.count(b"\n\n")

    def connection_lost(self, exc: Exception | None) -> None:
        Stream.lost += 1


def resident_kib(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


async def measure(proxy: Subject, streams: int, gap_s: float, minutes: float) -> None:
    """Open the streams, and look at the memory each two seconds."""
    assert proxy.pid is not None
    loop = asyncio.get_running_loop()
    before_kib = resident_kib(proxy.pid)
    for number in range(streams):
        await loop.create_connection(Stream, "127.0.0.1", proxy.port)
        if number % 25 == 24:
            await asyncio.sleep(25 / OPENED_EACH_S)
    while Stream.begun < streams:
        assert not Stream.lost, f"{Stream.lost} streams were lost"
        await asyncio.sleep(1)
    await asyncio.sleep(SETTLING_EVENTS * gap_s)
    start_s, seen, events = time.monotonic(), [(0.0, resident_kib(proxy.pid))], Stream.events
    while seen[-1][0] < minutes:
        await asyncio.sleep(2)
        seen.append(((time.monotonic() - start_s) / 60, resident_kib(proxy.pid)))
    assert not Stream.lost, f"{Stream.lost} streams were lost"
    slope, _ = linear_regression([at for at, _ in seen], [kib for _, kib in seen])
    tokens = (Stream.events - events) / seen[-1][0]
    sys.stdout.write(
        f"{streams} streams: {seen[0][1] / 1024:.0f} MiB resident, {before_kib / 1024:.0f} MiB before the first one, "
        f"{(seen[0][1] - before_kib) / streams:.1f} KiB a stream\n"
        f"over {seen[-1][0]:.1f} minutes: {slope:+.0f} KiB a minute ({tokens:.0f} tokens a minute, "
        f"{1024 * slope / tokens:+.1f} bytes each), from {seen[0][1] / 1024:.1f} to {seen[-1][1] / 1024:.1f} MiB\n"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--gap", type=float, default=6.0, help="seconds between two events of a stream")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--no-rescue", action="store_true", help="streams.rescue: false, so no token ids are kept")
    options = parser.parse_args()
    needed, (_, most) = 2 * options.streams + 200, resource.getrlimit(resource.RLIMIT_NOFILE)
    try:  # what is started here inherits it
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(needed, most)))
    except (ValueError, OSError):
        parser.error(f"{needed} open files are needed, {most} are allowed (ulimit -Hn)")
    with (
        engines(chunks=10**9, gap_s=options.gap) as ports,
        gateway("gateway", ports, "", rescue=not options.no_rescue) as subject,
    ):
        uvloop.run(measure(subject, options.streams, options.gap, options.minutes))


if __name__ == "__main__":
    main()
