"""What the picker face costs: processor time of an exchange without transport, then of a request behind a real Envoy.

The first part is `exchange_bench`. The second has Envoy alone, and the same picker on grpc.aio, beside it in one run.
Real parts on loopback: `ballast gateway` (face Picker, endpoints from a file, scraping every endpoint), Envoy with one
worker, small upstreams, and a closed-loop load of so many connections. The set-ups take turns; medians are shown.
Everything shares this machine's cores, so rates are floors; the processor times and their ratios are what to compare.
Prints two tables; `--json FILE` writes the figures. The second part needs Envoy: `make envoy`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from ballast_api.faces import Face
from ballast_api.gateway_files import EndpointEntry, EndpointsFile
from ballast_api.gateway_settings import (
    Discovery,
    GatewaySettings,
    Listeners,
    ServedModel,
)
from bench import exchange_bench
from tests.support.envoy import BINARY, EnvoySetup, RunningEnvoy, envoy

MODEL = "m"
ALONE = "Envoy alone"
BALLAST = [str(Path(sys.executable).with_name("ballast"))]
TRANSPORTS = {"own": BALLAST, "grpc.aio": [sys.executable, "-m", "bench.grpc_gateway"]}
"""What carries ext_proc, and the command that is `ballast` with it."""
BODY = json.dumps({"model": MODEL, "max_tokens": 5, "prompt": "a" * 400}).encode()
SETUPS = {
    "request": EnvoySetup(response_body=None),
    "request + response headers": EnvoySetup(response_body="NONE"),
    "request + response": EnvoySetup(),
}
"""What Envoy shows to the picker; the first is what the operator sets up."""
METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m"} 0
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of the repeats."""

    setup: str
    transport: str
    connections: int
    rps: float
    picker_us: float
    envoy_us: float
    p50_ms: float
    p99_ms: float
    failed: int


class Answer(asyncio.Protocol):
    """An upstream that answers any request of one read; the load keeps requests that small."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            if b"transfer-encoding: chunked" in head:
                stop = self._buffer.find(b"0\r\n\r\n", end)
                if stop < 0:
                    return
                stop += 5
            else:
                at = head.find(b"content-length: ")
                length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
                stop = end + 4 + length
                if len(self._buffer) < stop:
                    return
            self._buffer = self._buffer[stop:]
            self._transport.write(_answer(METRICS if b" /metrics " in head else b'{"ok":true}'))


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._buffer = b""
        self.latencies_s: list[float] = []
        self.failed = 0
        self.stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._asked_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"content-length: ")
        if at < 0:
            complete = self._buffer.endswith(b"0\r\n\r\n")
        else:
            complete = len(self._buffer) >= end + 4 + int(head[at + 16 :].split(b"\r\n", 1)[0])
        if not complete:
            return
        self.latencies_s.append(time.perf_counter() - self._asked_s)
        self.failed += not self._buffer.startswith(b"HTTP/1.1 200")
        self._buffer = b""
        if not self.stopped:
            self._ask()


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(url: str, request: bytes, connections: int, seconds: float) -> tuple[list[float], int]:
    """Latencies in seconds, and how many answers were not 200."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(lambda: Client(request), host, int(port)) for _ in range(connections)]
    await asyncio.sleep(seconds)
    for _, client in pairs:
        client.stopped = True
    await asyncio.sleep(0.1)
    for transport, _ in pairs:
        transport.close()
    return [s for _, client in pairs for s in client.latencies_s], sum(client.failed for _, client in pairs)


@asynccontextmanager
async def gateway(command: list[str], addresses: list[str], folder: Path) -> AsyncIterator[tuple[int, int]]:
    """`ballast gateway` as its own process: (ext_proc port, pid)."""
    endpoints = EndpointsFile(
        endpoints=tuple(EndpointEntry(name=f"e{n}", address=a, role="flexible") for n, a in enumerate(addresses))
    )
    settings = GatewaySettings(
        model=ServedModel(served_names=(MODEL,)),
        face=Face.PICKER,
        discovery=Discovery(file=str(folder / "endpoints.yaml")),
        listeners=Listeners(host="127.0.0.1", proxy=0, ext_proc=0, grpc_health=0, admin=0),
    )
    process = _start_gateway(command, settings, endpoints, folder)
    try:
        ports = await _ports(process, folder / "gateway.log")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['admin']}") as client, asyncio.timeout(30):
            while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110 (another process's state)
                await asyncio.sleep(0.1)
        yield ports["ext_proc"], process.pid
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 10)
        except subprocess.TimeoutExpired:
            process.kill()


def _start_gateway(
    command: list[str], settings: GatewaySettings, endpoints: EndpointsFile, folder: Path
) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "endpoints.yaml").write_text(endpoints.to_yaml())
    (folder / "gateway.yaml").write_text(settings.to_yaml())
    with (folder / "gateway.log").open("wb") as log, (folder / "requests.log").open("wb") as requests:
        return subprocess.Popen(
            [*command, "gateway", "--config", str(folder / "gateway.yaml")], stdout=requests, stderr=log
        )


async def _ports(process: subprocess.Popen[bytes], log: Path) -> dict[str, int]:
    async with asyncio.timeout(30):
        while True:
            text = await asyncio.to_thread(log.read_text)
            for line in text.splitlines():
                if '"event": "listening"' in line:
                    found: dict[str, int] = json.loads(line)["ports"]
                    return found
            if process.poll() is not None:
                raise SystemExit(f"the gateway ended:\n{text}")
            await asyncio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Stage:
    """A set-up that is running."""

    setup: str
    transport: str
    at: RunningEnvoy
    picker_pid: int | None = None


async def one_run(stage: Stage, *, target: str, connections: int, seconds: float) -> Row:
    """One run of one set-up. Without a picker the load itself names the target."""
    at, picker_pid = stage.at, stage.picker_pid
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    if picker_pid is None:
        head += f"x-gateway-destination-endpoint: {target}\r\n"
    request = f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY
    pids = {"envoy": at.pid} | ({} if picker_pid is None else {"picker": picker_pid})
    before = {who: cpu_s(pid) for who, pid in pids.items()}
    latencies_s, failed = await load(at.url, request, connections, seconds)
    count = max(1, len(latencies_s))
    used_us = {who: (cpu_s(pid) - before[who]) / count * 1e6 for who, pid in pids.items()}
    latencies_s.sort()
    return Row(
        setup=stage.setup,
        transport=stage.transport,
        connections=connections,
        rps=count / seconds,
        picker_us=used_us.get("picker", 0.0),
        envoy_us=used_us["envoy"],
        p50_ms=latencies_s[count // 2] * 1e3,
        p99_ms=latencies_s[count * 99 // 100] * 1e3,
        failed=failed,
    )


async def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    """All set-ups by all numbers of connections."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Answer, "127.0.0.1", 0) for _ in range(options.endpoints)]
    addresses = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    async with AsyncExitStack() as stack:
        stages = [Stage(ALONE, "", await stack.enter_async_context(envoy(None, EnvoySetup(), folder / "alone")))]
        for transport, command in TRANSPORTS.items():
            port, pid = await stack.enter_async_context(gateway(command, addresses, folder / transport))
            for name, setup in SETUPS.items():
                at = await stack.enter_async_context(envoy(port, setup, folder / transport / name.replace(" ", "-")))
                stages.append(Stage(name, transport, at, pid))
        rows = []
        for connections in options.connections:
            runs: list[list[Row]] = [[] for _ in stages]
            for _ in range(options.repeats):
                for stage, seen in zip(stages, runs, strict=True):
                    row = await one_run(stage, target=addresses[0], connections=connections, seconds=options.seconds)
                    seen.append(row)
            rows += [median(each) for each in runs]
        for server in servers:
            server.close()
        return rows


def median(runs: list[Row]) -> Row:
    """Of each figure."""
    names = ("rps", "picker_us", "envoy_us", "p50_ms", "p99_ms")
    middle = {name: statistics.median(getattr(run, name) for run in runs) for name in names}
    return Row(
        setup=runs[0].setup,
        transport=runs[0].transport,
        connections=runs[0].connections,
        failed=sum(run.failed for run in runs),
        **middle,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoints", type=int, default=16, help="upstreams to pick among (default 16)")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32], help="of the load (default 1 32)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run (default 4)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each set-up (default 3)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only-envoy", action="store_true", help="leave out the exchange without its transport")
    parser.add_argument("--turns", type=int, default=15, help="of each set-up without a transport (default 15)")
    options = parser.parse_args()
    exchanges = [] if options.only_envoy else exchange_bench.measure(options.turns)
    if exchanges:
        exchange_bench.show(exchanges)
    if not BINARY.exists():
        print("no Envoy: run `make envoy`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="picker-bench-") as folder:
        rows = asyncio.run(measure(options, Path(folder)))
    print(f"{options.endpoints} endpoints, {options.repeats} x {options.seconds:g} s, medians")
    header = (
        "shown to the picker",
        "transport",
        "conns",
        "req/s",
        "picker us/req",
        "envoy us/req",
        "p50 ms",
        "p99 ms",
        "failed",
    )
    print("{:<28} {:<9} {:>5} {:>7} {:>13} {:>12} {:>7} {:>7} {:>6}".format(*header))
    for row in rows:
        print("{:<28} {:<9} {:>5} {:>7.0f} {:>13.0f} {:>12.0f} {:>7.2f} {:>7.2f} {:>6}".format(*asdict(row).values()))
    if options.json:
        figures = {
            "exchanges": [asdict(row) for row in exchanges],
            "behind_envoy": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
