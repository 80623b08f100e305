"""Greedy clients: huge, hollow, deep and slow bodies from one client, while others ask and probes watch.

Others ask for twelve seconds, four a second, as streams of 20 tokens, at one prefill and two decodes. From the second
second on, four connections of one client send bodies that are within the limits, one after another (for a model that
is not served, so that no engine reads them); in the case of slow bodies, 40 connections send 4 MiB each and then a
byte a second. /healthz is asked 20 times a second, /metrics four times. The client is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from bench.reliability.kit.asking import ask
from bench.reliability.kit.client import at_rate
from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, percentile, tally

MIB = 1 << 20
HEAD = b'{"model":"nobody","prompt":"a","x":['
SECONDS = 12.0
CASES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "lists": lambda: HEAD + b"[]," * (8 * MIB // 3 - 20) + b"0]}",
    "nesting": lambda: HEAD + (b"[" * 100 + b"]" * 100 + b",") * (8 * MIB // 201 - 1) + b"0]}",
    "texts of two letters": lambda: HEAD + b'"ab",' * (8 * MIB // 5 - 20) + b"0]}",
    "names": lambda: HEAD + b"{" + b",".join(b'"k%d":0' % number for number in range(600_000)) + b"}]}",
    "a million token ids": lambda: (
        b'{"model":"nobody","prompt":[%b]}' % b",".join(b"%d" % (number % 100_000) for number in range(1_000_000))
    ),
    "8 MiB of text": lambda: (
        b'{"model":"nobody","prompt":"%b"}' % (b"All happy families, it says, are alike. " * 209_000)
    ),
    "8 MiB of code": lambda: b'{"model":"nobody","prompt":"%b"}' % (b'f(x): [\\"a\\", {x[0]: y}]\\n    ' * 270_000),
    "small lists": lambda: HEAD + b"[]," * 20_000 + b"0]}",
    "slow bodies": lambda: b'{"model":"nobody","prompt":"' + b"a" * (4 * MIB),
}


async def run(lab: Lab) -> list[Row]:
    """A row for each kind of body."""
    await lab.start_engines("p0", "d0", "d1")
    return [await _case(lab, case) for case in lab.cases(*CASES)]


async def _case(lab: Lab, case: str) -> Row:
    asks = [ask(at, output_tokens=20, chat=at % 3 == 0, seed=lab.options.seed) for at in range(int(4 * SECONDS))]
    async with lab.gateway(settings={"limits": {"requestTimeoutS": 4.0}}) as gateway:
        watch = Watch(gateway)
        tasks = [asyncio.create_task(work) for work in (watch.probe("/healthz", 0.05), watch.probe("/metrics", 0.25))]
        tasks.append(asyncio.create_task(watch.memory()))
        attack = asyncio.create_task(_attack(gateway.port, case))
        outcomes = await at_rate(gateway.port, asks, 4.0, bound_s=60.0)
        answers = await attack
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return tally(case, outcomes, notes={"the greedy client": answers, **watch.notes()})


class Watch:
    """Probes of a gateway, and its memory."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._took_s: dict[str, list[float]] = {}
        self._mib = [gateway.resident_mib()]

    async def probe(self, path: str, each_s: float) -> None:
        """Ask the admin port again and again, each time on a new connection, as a kubelet does."""
        loop, took = asyncio.get_running_loop(), self._took_s.setdefault(path, [])
        while True:
            begin_s = loop.time()
            reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.ports["admin"])
            writer.write(f"GET {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n".encode())
            await reader.read()
            writer.close()
            took.append(loop.time() - begin_s)
            await asyncio.sleep(each_s)

    async def memory(self) -> None:
        """Look at the memory again and again."""
        while True:
            self._mib.append(self._gateway.resident_mib())
            await asyncio.sleep(0.05)

    def notes(self) -> dict[str, object]:
        """What was seen, in words."""
        words: dict[str, object] = {"memory": f"{self._mib[0]:.0f} MiB before, {max(self._mib):.0f} at most"}
        for path, took in self._took_s.items():
            p50, p99 = (1e3 * (percentile(took, share) or 0.0) for share in (0.5, 0.99))
            words[path] = f"p50 {p50:.1f} ms, p99 {p99:.0f} ms, longest {1e3 * max(took):.0f} ms"
        return words


# --- the greedy client, a process of its own ------------------------------------------------------------------------


async def _attack(port: int, case: str) -> dict[str, object]:
    """What became of its bodies."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(port), case), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return dict(json.loads(said))


async def _send_bodies(port: int, case: str) -> dict[str, int]:
    body = CASES[case]()
    if not body:
        return {}
    counts: Counter[str] = Counter()
    end_s = asyncio.get_running_loop().time() + SECONDS - 2.0
    await asyncio.sleep(1.0)
    slow = case == "slow bodies"
    ones = [(_slow if slow else _again)(port, body, end_s, counts) for _ in range(40 if slow else 4)]
    await asyncio.gather(*ones)
    return dict(counts)


async def _again(port: int, body: bytes, end_s: float, counts: Counter[str]) -> None:
    """One body after another."""
    while asyncio.get_running_loop().time() < end_s:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_head(len(body)) + body)
            with suppress(OSError):
                await writer.drain()
            counts[(await reader.read(12))[9:].decode() or "hung up"] += 1
            writer.close()


async def _slow(port: int, body: bytes, end_s: float, counts: Counter[str]) -> None:
    """A body that never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_head(8 * MIB) + body)
    answer = asyncio.create_task(reader.read(12))
    while asyncio.get_running_loop().time() < end_s and not answer.done():
        await asyncio.wait([answer], timeout=1.0)
        writer.write(b"a")
    counts[answer.result()[9:].decode() if answer.done() else "held to the end"] += 1
    answer.cancel()
    writer.close()


def _head(length: int) -> bytes:
    kind = b"content-type: application/json\r\n"
    return b"POST /v1/completions HTTP/1.1\r\nhost: g\r\n%bcontent-length: %d\r\n\r\n" % (kind, length)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_send_bodies(int(sys.argv[1]), sys.argv[2]))))
