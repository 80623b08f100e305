"""Our picker beside GIE's own behind the same real Envoy: processor time of a request, latency added at steady rates.

Both choose among the same upstreams of loopback, and scrape each of them: ours by files, GIE's by pods of a bare API
server (`gie_picker`). Envoy shows both the whole request in full duplex, and no response: what our operator sets up.
First part: closed loops of so many connections, all in (scrapes too); processor time and the ratio are what to compare,
rates are floors, since everything shares this machine's cores. Second part: Poisson arrivals at steady rates; latency
counts from when a request was due, and what is added is the difference to Envoy without a picker in the same turns.
Prints two tables for each number of endpoints; `--json FILE` writes the figures. Needs `make envoy testbed-build`, Go
and etcd.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ballast_cli.demo.ports import free_port
from bench.gie_picker import VERSION, Missing, gie_pickers
from bench.picker_bench import ALONE, BALLAST, BODY, Answer, Client, Row, Stage, cpu_s, gateway, median, one_run
from tests.support.envoy import BINARY, EnvoySetup, envoy

OURS: Final = "ballast"
INTERVALS_MS: Final = {f"GIE {VERSION}, 50 ms": 50, f"GIE {VERSION}, 200 ms": 200}
"""Between two scrapes: its default, and ours."""
SETUP: Final = EnvoySetup(response_body=None)


@dataclass(frozen=True, slots=True)
class Paced:
    """One picker at one rate."""

    picker: str
    endpoints: int
    rate: float
    """Requests a second."""
    p50_ms: float
    p99_ms: float
    added_p50_ms: float
    added_p99_ms: float
    picker_share: float
    """Of one core."""
    failed: int


class _Pool:
    """Connections for an open loop: a free one, or one more."""

    def __init__(self, url: str, request: bytes) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._at = (host, int(port))
        self._request = request
        self._free: list[_Caller] = []
        self.all: list[_Caller] = []
        self.latencies_s: list[float] = []

    async def ask(self, due_s: float) -> None:
        if self._free:
            caller = self._free.pop()
        else:
            loop = asyncio.get_running_loop()
            _, caller = await loop.create_connection(lambda: _Caller(self._request), *self._at)
            self.all.append(caller)
        await caller.ask()
        self.latencies_s.append(time.perf_counter() - due_s)
        self._free.append(caller)


class _Caller(Client):
    """A connection that asks when it is told to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.stopped = True
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._answered: asyncio.Future[None] | None = None

    async def ask(self) -> None:
        self._answered = asyncio.get_running_loop().create_future()
        self._ask()
        await self._answered

    def data_received(self, data: bytes) -> None:
        before = len(self.latencies_s)
        super().data_received(data)
        if len(self.latencies_s) > before and self._answered is not None:
            self._answered.set_result(None)


async def paced(stage: Stage, request: bytes, rate: float, seconds: float, seed: int) -> tuple[list[float], int, float]:
    """Latencies in seconds, failures, and the picker's share of a core."""
    rng = random.Random(seed)
    pool = _Pool(stage.at.url, request)
    began_s = time.perf_counter()
    used_s = 0.0 if stage.picker_pid is None else cpu_s(stage.picker_pid)
    due_s, tasks = began_s, []
    while (due_s := due_s + rng.expovariate(rate)) < began_s + seconds:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        tasks.append(asyncio.ensure_future(pool.ask(due_s)))
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    spent_s = time.perf_counter() - began_s
    share = 0.0 if stage.picker_pid is None else (cpu_s(stage.picker_pid) - used_s) / spent_s
    failed = sum(caller.failed for caller in pool.all)
    for caller in pool.all:
        caller._transport.close()
    return sorted(pool.latencies_s), failed, share


def _request_head(target: str | None) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    if target is not None:
        head += f"x-gateway-destination-endpoint: {target}\r\n"
    return f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY


@asynccontextmanager
async def stages(endpoints: int, folder: Path) -> AsyncIterator[tuple[list[Stage], str]]:
    """Envoy alone, behind ours, and behind GIE's; and an upstream's address."""
    loop = asyncio.get_running_loop()
    hosts = [f"127.0.{1 + number // 250}.{1 + number % 250}" for number in range(endpoints)]
    port = free_port(*hosts)
    servers = [await loop.create_server(Answer, host, port) for host in hosts]
    addresses = [f"{host}:{port}" for host in hosts]
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.callback(server.close)
        found = [Stage(ALONE, "", await stack.enter_async_context(envoy(None, EnvoySetup(), folder / "alone")))]
        ours, pid = await stack.enter_async_context(gateway(BALLAST, addresses, folder / "ours"))
        at = await stack.enter_async_context(envoy(ours, SETUP, folder / "ours-envoy"))
        found.append(Stage(OURS, "", at, pid))
        theirs = await stack.enter_async_context(gie_pickers(hosts, port, [*INTERVALS_MS.values()], folder))
        for name, picker in zip(INTERVALS_MS, theirs, strict=True):
            at = await stack.enter_async_context(envoy(picker.port, SETUP, folder / f"envoy-{INTERVALS_MS[name]}"))
            found.append(Stage(name, "", at, picker.pid))
        yield found, addresses[0]


async def closed_loops(found: Sequence[Stage], target: str, options: argparse.Namespace) -> list[Row]:
    """Medians of the turns by connections and picker."""
    rows = []
    for connections in options.connections:
        runs: list[list[Row]] = [[] for _ in found]
        for _ in range(options.repeats):
            for stage, seen in zip(found, runs, strict=True):
                seen.append(await one_run(stage, target=target, connections=connections, seconds=options.seconds))
        rows += [median(each) for each in runs]
    return rows


async def steady(found: Sequence[Stage], target: str, endpoints: int, options: argparse.Namespace) -> list[Paced]:
    """Medians of the turns by rate and picker."""
    rows = []
    for rate in options.rates:
        runs: list[list[tuple[float, float, float, int]]] = [[] for _ in found]
        for turn in range(options.repeats):
            for stage, seen in zip(found, runs, strict=True):
                request = _request_head(target if stage.picker_pid is None else None)
                latencies_s, failed, share = await paced(stage, request, rate, options.seconds, turn)
                count = len(latencies_s)
                seen.append((latencies_s[count // 2] * 1e3, latencies_s[count * 99 // 100] * 1e3, share, failed))
        alone = [statistics.median(run[column] for run in runs[0]) for column in (0, 1)]
        for stage, seen in zip(found, runs, strict=True):
            p50_ms, p99_ms, share = (statistics.median(run[column] for run in seen) for column in (0, 1, 2))
            failures = sum(run[3] for run in seen)
            rows.append(
                Paced(
                    stage.setup, endpoints, rate, p50_ms, p99_ms, p50_ms - alone[0], p99_ms - alone[1], share, failures
                )
            )
    return rows


def show(endpoints: int, rows: Sequence[Row], rates: Sequence[Paced]) -> None:
    """Two tables."""
    print(f"\n{endpoints} endpoints, closed loops")
    header = ("picker", "conns", "req/s", "picker us/req", "ours/GIE", "envoy us/req", "p50 ms", "p99 ms", "failed")
    print("{:<20} {:>5} {:>7} {:>13} {:>9} {:>12} {:>7} {:>7} {:>6}".format(*header))
    ours = {row.connections: row.picker_us for row in rows if row.setup == OURS}
    for row in rows:
        ratio = f"{ours[row.connections] / row.picker_us:.2f}" if row.setup in INTERVALS_MS else ""
        print(
            f"{row.setup:<20} {row.connections:>5} {row.rps:>7.0f} {row.picker_us:>13.0f} {ratio:>9}"
            f" {row.envoy_us:>12.0f} {row.p50_ms:>7.2f} {row.p99_ms:>7.2f} {row.failed:>6}"
        )
    print(f"\n{endpoints} endpoints, steady rates")
    columns = ("picker", "req/s", "p50 ms", "p99 ms", "added p50", "added p99", "core %", "failed")
    print("{:<20} {:>6} {:>7} {:>7} {:>9} {:>9} {:>6} {:>6}".format(*columns))
    for each in rates:
        print(
            f"{each.picker:<20} {each.rate:>6.0f} {each.p50_ms:>7.2f} {each.p99_ms:>7.2f} {each.added_p50_ms:>9.2f}"
            f" {each.added_p99_ms:>9.2f} {each.picker_share:>6.0%} {each.failed:>6}"
        )


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """All of it."""
    figures: dict[str, object] = {}
    for endpoints in options.endpoints:
        with tempfile.TemporaryDirectory(prefix="gie-bench-") as folder:
            async with stages(endpoints, Path(folder)) as (found, target):
                rows = await closed_loops(found, target, options)
                rates = await steady(found, target, endpoints, options)
        show(endpoints, rows, rates)
        figures[str(endpoints)] = {"closed": [asdict(row) for row in rows], "steady": [asdict(row) for row in rates]}
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoints", type=int, nargs="+", default=[16, 100], help="to pick among (default 16 100)")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32], help="of closed loops (default 1 32)")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[50, 200, 800], help="requests a second (default 50 200 800)"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run (default 4)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each set-up (default 3)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if not BINARY.exists():
        print("no Envoy: run `make envoy`", file=sys.stderr)
        return 1
    try:
        figures = asyncio.run(measure(options))
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
