"""What the pod agent costs beside the proxy face: processor time per request and per 1,000 paced chunks, memory, start.

Real parts on loopback, as in `proxy_bench.py` (its engines and floor): `ballast gateway` under the default policy in
front of prefill and decode endpoints, and in front of one that does both; `ballast agent` with plans for the same two,
its events listened to; and requests that pass through an agent without a plan. All take turns in each round; medians
are shown. Prints a table and how it stands to the goals; `--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from ballast_core.model import Role
from ballast_gateway.http.client import Collect, Exchange, UpstreamPool
from ballast_gateway.podapi import messages
from ballast_gateway.podapi.plan import Place, Plan, sign
from ballast_gateway.view.calls import Calls
from bench.proxy_bench import (
    CHUNKS,
    CONNECTIONS,
    FLOOR,
    GAP_S,
    STREAMS,
    Events,
    Subject,
    bare_proxy,
    child,
    cpu_s,
    engines,
    gateway,
    percentile,
    request,
)

TOKEN = b"0123456789abcdef-bench"
PROXY_PD, PROXY_ONE = "proxy face, P/D", "proxy face, one engine"
AGENT_PD, AGENT_ONE, PASSED = "agent, P/D by plan", "agent, plan, one engine", "agent, passed on"
ROWS = (FLOOR, PROXY_PD, AGENT_PD, PROXY_ONE, AGENT_ONE, PASSED)
GOALS = ((AGENT_PD, PROXY_PD), (AGENT_ONE, PROXY_ONE), (PASSED, PROXY_ONE))
"""Which row costs at most what which other one costs."""
WORK = ("whole answers", "short streams", "paced streams")
STARTS = 5


@dataclass(frozen=True)
class Asked:
    """A subject, and how it is asked."""

    subject: Subject
    payloads: Callable[[int, bool, int], list[bytes]]
    """So many requests, streams or not, of so many tokens."""


class Plans:
    """Requests with a plan each, signed beforehand."""

    def __init__(self, decode: Place, prefill: Place | None) -> None:
        self._decode, self._prefill = decode, prefill
        self._number = 0

    def __call__(self, count: int, stream: bool, tokens: int) -> list[bytes]:
        """As `Asked.payloads`."""
        head, body = request(stream, tokens).split(b"\r\n\r\n", 1)
        made = []
        for _ in range(count):
            self._number += 1
            plan = Plan(id=f"r{self._number}", by="bench", decode=self._decode, prefill=self._prefill, prompt_tokens=60)
            line = sign(plan, TOKEN, time.time()).encode()
            made.append(b"%b\r\nx-ballast-plan: %b\r\n\r\n%b" % (head, line, body))
        return made


def plain(count: int, stream: bool, tokens: int) -> list[bytes]:
    """Requests without a plan."""
    return [request(stream, tokens)] * count


async def small(asked: Asked, count: int, *, stream: bool) -> dict[str, float]:
    """A closed loop of `CONNECTIONS`, for one token each."""
    pool = UpstreamPool(asyncio.get_running_loop(), connect_timeout_s=5)
    payloads, address, took = asked.payloads(count, stream, 1), f"127.0.0.1:{asked.subject.port}", list[float]()

    async def one_connection() -> None:
        while payloads:
            start = time.perf_counter()
            exchange = Collect()
            await pool.perform(address, payloads.pop(), exchange)
            assert exchange.status == 200, exchange.body
            took.append(time.perf_counter() - start)

    assert asked.subject.pid is not None
    before, start = cpu_s(asked.subject.pid), time.perf_counter()
    await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))
    wall_s, used_s = time.perf_counter() - start, cpu_s(asked.subject.pid) - before
    pool.close()
    return {"rate": count / wall_s, "p99_ms": 1e3 * percentile(took, 0.99), "cpu": 1e3 * used_s / count}


async def paced(asked: Asked) -> dict[str, float]:
    """Many streams at once."""
    pool = UpstreamPool(asyncio.get_running_loop(), connect_timeout_s=5)
    address = f"127.0.0.1:{asked.subject.port}"
    payloads, exchanges = asked.payloads(STREAMS, True, CHUNKS), [Events() for _ in range(STREAMS)]

    async def one(number: int) -> None:
        await asyncio.sleep(GAP_S * number / STREAMS)
        await pool.perform(address, payloads[number], exchanges[number])

    assert asked.subject.pid is not None
    before, start = cpu_s(asked.subject.pid), time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(STREAMS)))
    wall_s, used_s = time.perf_counter() - start, cpu_s(asked.subject.pid) - before
    pool.close()
    assert all(len(exchange.at_s) > CHUNKS for exchange in exchanges)
    gaps = [b - a for exchange in exchanges for a, b in zip(exchange.at_s, exchange.at_s[1:], strict=False)]
    late = [1e3 * abs(gap - GAP_S) for gap in gaps]
    events = STREAMS * CHUNKS
    return {"rate": events / wall_s, "p99_ms": percentile(late, 0.99), "cpu": 1e6 * used_s / events}


class _News(Exchange):
    def on_data(self, data: bytes) -> None:
        pass


@contextlib.asynccontextmanager
async def listened(port: int) -> AsyncIterator[None]:
    """A gateway listens to this agent's events."""
    pool = UpstreamPool(asyncio.get_running_loop(), connect_timeout_s=5)
    calls, address = Calls(asyncio.get_running_loop(), pool, lambda: (TOKEN,)), f"127.0.0.1:{port}"
    await calls.call(address, "GET", messages.STATE)  # learns for whom to sign
    payload, _ = calls.signed(address, "GET", messages.EVENTS)
    news = _News()
    pool.start(address, payload, news, lambda error: None)
    try:
        yield
    finally:
        pool.cancel(news)


async def measure(
    asked: Sequence[Asked], pod_apis: Sequence[int], rounds: int, count: int
) -> dict[str, dict[str, float]]:
    """Medians of all rounds, by work and row."""
    found: dict[str, list[dict[str, float]]] = {}
    async with contextlib.AsyncExitStack() as listening:
        for port in pod_apis:
            await listening.enter_async_context(listened(port))
        for each in asked:
            await small(each, 2_000, stream=False)  # warm
        for turn in range(rounds):
            for each in asked if turn % 2 == 0 else asked[::-1]:
                for work in WORK:
                    figures = (
                        await paced(each)
                        if work == "paced streams"
                        else await small(each, count, stream=work == "short streams")
                    )
                    found.setdefault(f"{work}, {each.subject.name}", []).append(figures)
    return {name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()}


@contextlib.contextmanager
def agent(name: str, engine_port: int, folder: Path) -> Iterator[tuple[Subject, int, Place]]:
    """`ballast agent` beside an engine; its pod API's port, and its place."""
    (folder / "token").write_bytes(TOKEN)
    place = Place("decode-0", "127.0.0.1:1", Role.DECODE)
    flags = {"--engine": f"127.0.0.1:{engine_port}", "--token-file": str(folder / "token"), "--name": place.id}
    flags |= {"--host": "127.0.0.1", "--port": "0", "--pod-api-port": "0", "--address": place.address}
    arguments = [each for flag in flags.items() for each in flag]
    with child(sys.executable, "-m", "ballast_cli", "agent", *arguments, line_from="stderr") as (process, line):
        at = json.loads(line)["ports"]
        yield Subject(name, at["openai"], process.pid), at["pod_api"], place


def resident_mib(pid: int) -> float:
    """Memory of a process, shared pages included (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def starts(folder: Path) -> tuple[float, float]:
    """Seconds from a start to the listeners, and MiB then: medians."""
    took, mib = [], []
    for _ in range(STARTS):
        start = time.perf_counter()
        with agent("starting", 9, folder) as (subject, _, _):
            took.append(time.perf_counter() - start)
            assert subject.pid is not None
            mib.append(resident_mib(subject.pid))
    return statistics.median(took), statistics.median(mib)


def table(figures: dict[str, dict[str, float]]) -> str:
    """The figures, and how they stand to the goals."""
    lines = []
    for work in WORK:
        unit = "CPU ms/1,000 chunks" if work == "paced streams" else "CPU ms/request"
        late = "gap error p99 ms" if work == "paced streams" else "p99 ms"
        lines.append(f"{work:32}{'per second':>12}{late:>18}{unit:>22}")
        for name in ROWS:
            row = figures[f"{work}, {name}"]
            lines.append(f"  {name:30}{row['rate']:12.0f}{row['p99_ms']:18.2f}{row['cpu']:22.3f}")
    for work in WORK:
        for name, beside in GOALS:
            ratio = figures[f"{work}, {name}"]["cpu"] / figures[f"{work}, {beside}"]["cpu"]
            lines.append(f"{work}, {name}: {ratio:.2f} times {beside}, goal 1{'' if ratio <= 1 else '  MISSED'}")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=5_000, help="per round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        start_s, start_mib = starts(folder)
        ports = running.enter_context(engines())
        alone = ("flexible",) * len(ports)
        pd, pd_api, pd_place = running.enter_context(agent(AGENT_PD, ports[-1], folder))
        one, one_api, one_place = running.enter_context(agent(AGENT_ONE, ports[-1], folder))
        passed, _, _ = running.enter_context(agent(PASSED, ports[-1], folder))
        prefill = Place("prefill-0", f"127.0.0.1:{ports[0]}", Role.PREFILL)
        asked = [
            Asked(running.enter_context(bare_proxy(ports)), plain),
            Asked(running.enter_context(gateway(PROXY_PD, ports, "", rescue=True)), plain),
            Asked(pd, Plans(pd_place, prefill)),
            Asked(running.enter_context(gateway(PROXY_ONE, ports, "", rescue=True, roles=alone)), plain),
            Asked(one, Plans(one_place, None)),
            Asked(passed, plain),
        ]
        figures = uvloop.run(measure(asked, (pd_api, one_api), options.rounds, options.requests))
        memory = {each.subject.name: resident_mib(each.subject.pid or 0) for each in asked}
    sys.stdout.write(f"{table(figures)}\n")
    sys.stdout.write(f"started in {start_s:.2f} s, {start_mib:.1f} MiB resident then\n")
    sys.stdout.write("".join(f"{name}: {mib:.1f} MiB resident after the load\n" for name, mib in memory.items()))
    if options.json:
        found = {"work": figures, "start_s": start_s, "start_mib": start_mib, "resident_mib": memory}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
