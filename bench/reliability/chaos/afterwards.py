"""What must be as before when a chaos run is over: ledgers, engines, sockets, memory and logs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.reliability.kit.engines import Engine
from bench.reliability.kit.gateways import GatewayProcess

SETTLE_S = 15.0
"""For connections without requests to be closed, and for what clients left to be ended."""
MORE_MIB = 48.0
"""That much more memory than before may a gateway hold: pages that its allocator keeps, and what it has learned."""


@dataclass(frozen=True)
class Holdings:
    """What a gateway's process holds."""

    files: int
    resident_mib: float


async def settled(
    gateways: Sequence[GatewayProcess], engines: Sequence[Engine], most_files: Mapping[GatewayProcess, int]
) -> list[str]:
    """Wait until nothing is in flight, and no more files are open than those; what is not so in time."""
    deadline_s = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        found = [*await _unsettled(gateways, engines), *_open(most_files)]
        if not found or asyncio.get_running_loop().time() > deadline_s:
            return found
        await asyncio.sleep(0.5)


def holdings(gateway: GatewayProcess) -> Holdings:
    """As of now."""
    return Holdings(gateway.open_files(), gateway.resident_mib())


def grown(gateway: GatewayProcess, before: Holdings) -> list[str]:
    """Whether it holds much more memory than before."""
    more_mib = gateway.resident_mib() - before.resident_mib
    return [f"{gateway.program.name} holds {more_mib:.0f} MiB more than before"] if more_mib > MORE_MIB else []


def complaints(gateway: GatewayProcess) -> list[str]:
    """Errors and traces in its log, and requests that it has ended twice."""
    found = [f"{gateway.program.name} says: {line[:600]}" for line in gateway.complaints()]
    ended = Counter(entry["request_id"] for entry in gateway.requests())
    return found + [f"{gateway.program.name} ended {name} {times} times" for name, times in ended.items() if times > 1]


async def _unsettled(gateways: Sequence[GatewayProcess], engines: Sequence[Engine]) -> list[str]:
    ledgers = {gateway.program.name: await gateway.in_flight() for gateway in gateways}
    gauges = {
        f"{engine.name}: {name}": await engine.metric(f"vllm:{name}{{")
        for engine in engines
        for name in ("num_requests_running", "num_requests_waiting")
    }
    found = [f"{name}: {count:.0f} requests are in flight" for name, count in ledgers.items() if count]
    return found + [f"{name} is {count:.0f}" for name, count in gauges.items() if count]


def _open(most_files: Mapping[GatewayProcess, int]) -> list[str]:
    return [
        f"{gateway.program.name} has {files} files open, {most} before"
        for gateway, most in most_files.items()
        if (files := gateway.open_files()) > most
    ]
