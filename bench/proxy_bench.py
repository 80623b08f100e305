"""What the proxy face costs: processor time per P/D request and per 1,000 paced SSE chunks, beside a bare P/D proxy.

Real parts on loopback: `ballast gateway` with its scrapes, log and metrics on, once under least-requests and once under
the default policy; the floor, `bare_proxy.py`; one server that plays all engines (it answers at once: proxies are
measured, not an engine); a closed-loop load on a lean client. The direct rows ask that server without a proxy. All run
in the same run and take turns in each round; medians are shown, and ratios to the floor. Everything shares this
machine's cores: compare within one run. Prints a table; `--json FILE` writes the figures.

`--features` compares the gateway with the same without one of the things that protect or observe requests, each in
turn, under the default policy, and says what share of a request and of a chunk each one costs.

`--workers N` compares a gateway of one process with one of so many workers instead: requests a second, and processor
time of all their processes together.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

import httptools
import httpx
import uvloop

from ballast_gateway.http.client import Collect, UpstreamPool
from ballast_gateway.http.responses import Headers

METRICS = b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
HANDLE = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [list(range(32))], "remote_port": 1}
EVENT = b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1795241406,"model":"tiny","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'  # noqa: E501
LAST_EVENT = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"length"')
USAGE_EVENT = b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1795241406,"model":"tiny","choices":[],"usage":{"prompt_tokens":60,"total_tokens":%d,"completion_tokens":%d}}\n\n'  # noqa: E501
EVENT_WITH_IDS = EVENT.replace(b'"stop_reason":null', b'"stop_reason":null,"token_ids":[15043]')
PROMPT_IDS = b'"prompt_token_ids":[%b],"token_ids"' % b",".join([b"15043"] * 60)
FIRST_EVENT = EVENT_WITH_IDS.replace(b'"token_ids"', PROMPT_IDS)
ASKS_TO_STREAM, ASKS_FOR_ONE = re.compile(rb'"stream": ?true'), re.compile(rb'"max_tokens": ?1[,}]')
CONNECTIONS = 32
SPLIT = ("prefill", "prefill", "decode", "decode")
STREAMS, CHUNKS, GAP_S = 200, 60, 0.05
OURS = (sys.executable, "-m", "ballast_cli")
FLOOR, LEAST, DEFAULT = "bare proxy", "least-requests", "default policy"
GOALS = (
    ("cpu_ms", "a P/D request", LEAST, FLOOR, 4.0),
    ("cpu_ms", "a P/D request", DEFAULT, FLOOR, 4.0),
    ("cpu_ms", "a P/D request", DEFAULT, LEAST, 1.15),
    ("cpu_ms_per_1000", "1,000 chunks", DEFAULT, FLOOR, 1.7),
    ("cpu_ms_per_1000", "1,000 chunks", DEFAULT, LEAST, 1.15),
)
"""Of which figure, what it is about, of which proxy, beside which one, and the most that their ratio may be."""

FEATURES: dict[str, dict[str, Any]] = {
    "the progress watch": {"watch": {"enabled": False}},
    "bounded admission": {"policy": {"admission": {"type": "open"}}},
    "tokens kept for rescues": {"streams": {"rescue": False}},
    "recorded traffic": {"traffic": {"keptS": 0}},
    "the log of requests": {"logs": {"requests": False}},
}
"""What can be left out, and the settings that leave it out."""
WITHOUT, ALL_OF_THEM = "without ", "all of these"


# --- the engines: one lean server ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Load:
    """What one engine does now."""

    streams: int = 0


class Engine(asyncio.Protocol):
    """Answers at once; a stream in so many events, one each `gap_s`."""

    def __init__(self, chunks: int, gap_s: float, load: Load) -> None:
        self.chunks, self.gap_s, self.load = chunks, gap_s, load

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:  # some routers try HTTP/2 first
            self.transport.close()

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if not body:
            self._reply(METRICS % self.load.streams)
        elif b'"do_remote_decode":true' in body:
            self._reply(json.dumps({"choices": [{"text": "a"}], "kv_transfer_params": HANDLE}).encode())
        elif ASKS_TO_STREAM.search(body) and ASKS_FOR_ONE.search(body):
            self._one_token()
        elif ASKS_TO_STREAM.search(body):
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self.load.streams += 1
            self._event(0, b"return_token_ids" in body)
        else:
            self._reply(json.dumps({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}).encode())

    def _one_token(self) -> None:
        """A whole answer of one token, asked for as a stream: in one write, as after an only step."""
        first = LAST_EVENT.replace(b'"stop_reason":null', b'"stop_reason":null,"token_ids":[15043]')
        events = first.replace(b'"token_ids"', PROMPT_IDS) + USAGE_EVENT % (61, 1) + b"data: [DONE]\n\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.transport.write(b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, len(events), events))

    def _reply(self, body: bytes) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )

    def _event(self, number: int, ids: bool) -> None:
        if self.transport.is_closing():
            self.load.streams -= 1
            return
        if number == self.chunks:
            self.load.streams -= 1
            self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        event = (EVENT_WITH_IDS if number else FIRST_EVENT) if ids else EVENT
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        asyncio.get_running_loop().call_later(self.gap_s, self._event, number + 1, ids)


async def serve_engines(count: int, chunks: int, gap_s: float) -> None:
    """Serve on so many ports of their own, and say which."""
    loop = asyncio.get_running_loop()
    ports = [("127.0.0.1", 0)] * count
    servers = [await loop.create_server(partial(Engine, chunks, gap_s, Load()), *at, backlog=1024) for at in ports]
    sys.stdout.write(json.dumps([server.sockets[0].getsockname()[1] for server in servers]) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


# --- processes ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def child(*command: str, line_from: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the first line that it says."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": None, line_from: subprocess.PIPE}
    with subprocess.Popen(command, text=True, **streams) as process:  # type: ignore[call-overload]
        try:
            yield process, getattr(process, line_from).readline()
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    """Processor time of a process, its threads and its children, user and system (Linux: the clock of a process by its
    id)."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    pids = [pid, *map(int, listed.split())]
    return sum(time.clock_gettime((~each << 3) | 2) for each in pids)


# --- the load -----------------------------------------------------------------------------------------------------


def request(stream: bool, tokens: int) -> bytes:
    """A request of 60 tokens or so, for a stream or a whole answer of so many."""
    body = json.dumps({"model": "tiny", "prompt": "word " * 60, "max_tokens": tokens, "stream": stream}).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (
            len(body),
            body,
        )
    )


class Events(Collect):
    """Counts events and when they came."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s: list[float] = []

    def on_head(self, status: int, headers: Headers) -> None:
        super().on_head(status, headers)
        assert status == 200

    def on_data(self, data: bytes) -> None:
        self.at_s += [time.perf_counter()] * data.count(b"\n\n")


@dataclass(frozen=True)
class Requests:
    rps: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


@dataclass(frozen=True)
class Streams:
    delay_p50_ms: float
    delay_p99_ms: float
    cpu_ms_per_1000: float


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def small_requests(port: int, pid: int | None, count: int, connections: int, *, stream: bool = False) -> Requests:
    """A closed loop of so many connections, for one token each."""
    pool = UpstreamPool(asyncio.get_running_loop(), connect_timeout_s=5)
    payload, address = request(stream=stream, tokens=1), f"127.0.0.1:{port}"
    took: list[float] = []

    async def one_connection(turns: int) -> None:
        for _ in range(turns):
            start = time.perf_counter()
            exchange = Collect()
            await pool.perform(address, payload, exchange)
            assert exchange.status == 200
            took.append(time.perf_counter() - start)

    before, start = cpu_s(pid) if pid else 0.0, time.perf_counter()
    await asyncio.gather(*(one_connection(count // connections) for _ in range(connections)))
    wall_s, used_s = time.perf_counter() - start, (cpu_s(pid) if pid else 0.0) - before
    pool.close()
    return Requests(
        len(took) / wall_s, 1e3 * percentile(took, 0.5), 1e3 * percentile(took, 0.99), 1e3 * used_s / len(took)
    )


async def paced_streams(port: int, pid: int | None) -> Streams:
    """Many streams at once; delay is how much later than its pace an event came, by its stream's earliest."""
    pool = UpstreamPool(asyncio.get_running_loop(), connect_timeout_s=5)
    payload, address = request(stream=True, tokens=CHUNKS), f"127.0.0.1:{port}"
    exchanges = [Events() for _ in range(STREAMS)]

    async def one(number: int) -> None:
        await asyncio.sleep(GAP_S * number / STREAMS)
        await pool.perform(address, payload, exchanges[number])

    before = cpu_s(pid) if pid else 0.0
    await asyncio.gather(*(one(number) for number in range(STREAMS)))
    used_s = (cpu_s(pid) if pid else 0.0) - before
    pool.close()
    counts = {len(exchange.at_s) for exchange in exchanges}
    assert min(counts) > CHUNKS, f"not every event of every stream came: {sorted(counts)}"
    gaps = [b - a for exchange in exchanges for a, b in zip(exchange.at_s, exchange.at_s[1:], strict=False)]
    late = [abs(gap - GAP_S) for gap in gaps]
    return Streams(1e3 * percentile(late, 0.5), 1e3 * percentile(late, 0.99), 1e6 * used_s / (STREAMS * CHUNKS))


# --- the run ------------------------------------------------------------------------------------------------------


def settings(
    folder: Path,
    ports: list[int],
    policy: str,
    /,
    *,
    rescue: bool,
    roles: Sequence[str] = SPLIT,
    workers: int = 1,
    **more: object,
) -> Path:
    entries = [
        {"name": f"{role}-{number}", "address": f"127.0.0.1:{port}", "role": role}
        for number, (role, port) in enumerate(zip(roles, ports, strict=True))
    ]
    (folder / "endpoints.yaml").write_text(json.dumps({"endpoints": entries}), encoding="utf-8")
    config = {
        "model": {"servedNames": ["tiny"]},
        "discovery": {"file": str(folder / "endpoints.yaml")},
        "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0},
        "limits": {"drainGraceS": 0},
        "streams": {"rescue": rescue},
        **more,
    }
    if workers > 1:
        config["workers"] = workers
    if policy:
        prefill, _, decode = policy.partition("/")
        config["policy"] = {"prefill": {"type": prefill}, "decode": {"type": decode or prefill}}
    (folder / "gateway.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder / "gateway.yaml"


async def until_ready(admin_port: int) -> None:
    async with httpx.AsyncClient() as client:
        while (await client.get(f"http://127.0.0.1:{admin_port}/readyz")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Subject:
    """What is measured: a proxy, or the engines themselves."""

    name: str
    port: int
    pid: int | None


async def measure(
    subjects: list[Subject], rounds: int, count: int, *, slow: Collection[str] = (), slow_count: int = 0
) -> dict[str, dict[str, float]]:
    """Medians of all rounds, by row. `slow`: subjects that get `slow_count` requests in place of `count`."""
    found: dict[str, list[dict[str, float]]] = {}

    def note(name: str, figures: Requests | Streams) -> None:
        found.setdefault(name, []).append(asdict(figures))

    counts = {subject.name: slow_count if subject.name in slow else count for subject in subjects}
    for subject in subjects:
        await small_requests(subject.port, None, min(2_000, counts[subject.name]), CONNECTIONS)  # warm
    for turn in range(rounds):
        for each in subjects if turn % 2 == 0 else subjects[::-1]:
            count = counts[each.name]
            for connections in (CONNECTIONS, 1):
                turns = count if connections > 1 else count // 5
                figures = await small_requests(each.port, each.pid, turns, connections)
                note(f"requests, {connections} connections, {each.name}", figures)
            note(
                f"short streams, {each.name}",
                await small_requests(each.port, each.pid, count, CONNECTIONS, stream=True),
            )
            note(f"paced streams, {each.name}", await paced_streams(each.port, each.pid))
    return {name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()}


def table(figures: dict[str, dict[str, float]]) -> str:
    """The figures, and how they stand to the goals."""
    lines = [f"{'':46}{'rps':>9}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms/request':>18}"]
    for name, row in sorted(figures.items(), key=lambda item: item[0].rpartition(",")[0]):
        if "rps" in row:
            cpu = f"{row['cpu_ms']:.3f}" if row["cpu_ms"] else "-"
            lines.append(f"{name:46}{row['rps']:9.0f}{row['p50_ms']:9.2f}{row['p99_ms']:9.2f}{cpu:>18}")
    lines.append(f"{'':46}{'gap error p50, p99 ms':>27}{'CPU ms/1,000 chunks':>24}")
    for name, row in figures.items():
        if "rps" not in row:
            delay = f"{row['delay_p50_ms']:.2f}, {row['delay_p99_ms']:.2f}"
            cpu = f"{row['cpu_ms_per_1000']:.1f}" if row["cpu_ms_per_1000"] else "-"
            lines.append(f"{name:46}{delay:>27}{cpu:>24}")
    rows = {"cpu_ms": f"requests, {CONNECTIONS} connections", "cpu_ms_per_1000": "paced streams"}
    for key, what, name, beside, most in GOALS:
        if f"{rows[key]}, {beside}" not in figures:
            continue
        ratio = figures[f"{rows[key]}, {name}"][key] / figures[f"{rows[key]}, {beside}"][key]
        met = "" if ratio <= most else "  MISSED"
        lines.append(f"{what}, {name}: {ratio:.2f} times {beside}, goal {most:g}{met}")
    lines += [
        f"{name}: {row[key] / figures[f'{name}, other'][key]:.2f} times the other installation"
        for name, row in figures.items()
        for key in ("cpu_ms", "cpu_ms_per_1000")
        if row.get(key) and f"{name}, other" in figures
    ]
    return "\n".join(lines)


def shares(figures: dict[str, dict[str, float]]) -> str:
    """What each feature costs: the share of what a request, or a chunk, takes with all of them."""
    rows = {
        "requests, 32 connections": "cpu_ms",
        "short streams": "cpu_ms",
        "paced streams": "cpu_ms_per_1000",
    }
    lines = [f"{'share of processor time':34}{'whole answer':>15}{'short stream':>15}{'a chunk':>12}"]
    for feature in (*FEATURES, ALL_OF_THEM):
        found = [
            1 - figures[f"{row}, {WITHOUT}{feature}"][key] / figures[f"{row}, {DEFAULT}"][key]
            for row, key in rows.items()
        ]
        lines.append(
            f"{feature:34}"
            + "".join(f"{100 * share:{width}.1f} %" for share, width in zip(found, (13, 13, 10), strict=True))
        )
    return "\n".join(lines)


@contextlib.contextmanager
def engines(chunks: int = CHUNKS, gap_s: float = GAP_S) -> Iterator[list[int]]:
    """The server that plays all engines; gives its ports, prefill before decode."""
    paced = ("--engines", str(chunks), str(gap_s))
    with child(sys.executable, __file__, *paced, line_from="stdout") as (_, said):
        yield json.loads(said)


@contextlib.contextmanager
def gateway(
    name: str,
    ports: list[int],
    policy: str,
    /,
    *,
    rescue: bool,
    ballast: Sequence[str] = OURS,
    roles: Sequence[str] = SPLIT,
    workers: int = 1,
    **more: object,
) -> Iterator[Subject]:
    """`ballast gateway` in front of the engines, ready to serve; `ballast`: the command; `more`: of its settings."""
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder), ports, policy, rescue=rescue, roles=roles, workers=workers, **more)
        command = (*ballast, "gateway", "--config", str(config))
        with child(*command, line_from="stderr") as (process, line):
            said = json.loads(line)
            while "ports" not in said:  # workers may speak before their supervisor
                said = json.loads(cast("TextIO", process.stderr).readline())
            at = said["ports"]
            asyncio.run(until_ready(at["admin"]))
            yield Subject(name, at["proxy"], process.pid)


@contextlib.contextmanager
def bare_proxy(ports: list[int]) -> Iterator[Subject]:
    """The floor in front of the engines."""
    script = str(Path(__file__).with_name("bare_proxy.py"))
    with child(sys.executable, script, *map(str, ports), line_from="stdout") as (process, port):
        yield Subject(FLOOR, int(port), process.pid)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=10_000, help="per round, at 32 connections")
    parser.add_argument("--policy", default="", help="PREFILL/DECODE: one more gateway, under this policy")
    parser.add_argument("--ballast", help="the `ballast` of another installation, to compare with")
    parser.add_argument("--no-rescue", action="store_true", help="streams.rescue: false, so no token ids are kept")
    parser.add_argument("--workers", type=int, help="compare one process with so many workers, and nothing else")
    parser.add_argument("--features", action="store_true", help="what each feature costs, and nothing else")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engines", nargs=2, type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engines:
        chunks, gap_s = options.engines
        uvloop.run(serve_engines(4, int(chunks), gap_s))
        return
    policies = {LEAST: "least-requests", DEFAULT: ""} | ({options.policy: options.policy} if options.policy else {})
    with contextlib.ExitStack() as running:
        ports = running.enter_context(engines())
        subjects = [Subject("direct", ports[-1], None)]
        if options.workers:
            for name, policy in policies.items():
                for count in (1, options.workers):
                    named = f"{name}, {count} process{'es' * (count > 1)}"
                    subjects.append(running.enter_context(gateway(named, ports, policy, rescue=True, workers=count)))
            policies = {}
        elif options.features:
            everything = {key: value for settings in FEATURES.values() for key, value in settings.items()}
            left_out: dict[str, dict[str, Any]] = {DEFAULT: {}} | {
                WITHOUT + name: more for name, more in {**FEATURES, ALL_OF_THEM: everything}.items()
            }
            for name, more in left_out.items():
                subjects.append(running.enter_context(gateway(name, ports, "", rescue=True, **more)))
            policies = {}
        else:
            subjects.append(running.enter_context(bare_proxy(ports)))
        for name, policy in policies.items():
            for whose, ballast in {"": OURS, ", other": (options.ballast,)}.items():
                if all(ballast):
                    rescue = not options.no_rescue
                    subjects.append(
                        running.enter_context(gateway(name + whose, ports, policy, rescue=rescue, ballast=ballast))
                    )
        figures = uvloop.run(measure(subjects, options.rounds, options.requests))
    sys.stdout.write(f"{table(figures)}\n")
    if options.features:
        sys.stdout.write(f"{shares(figures)}\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
