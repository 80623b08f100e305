"""What a whole answer costs the gateway: processor time a request for 100 and 1,000 output tokens, and its delay.

Inside, a whole answer is a stream of as many chunks (docs/gateway/streams.md). `--ballast PATH` measures another
installation too, in turns. One server plays the engine, one token each 10 ms; the answer is compared. Everything shares
this machine's cores: compare within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httptools
import uvloop

from ballast_gateway.http.client import Collect, UpstreamPool
from bench.proxy_bench import METRICS, child, cpu_s, until_ready

GAP_S = 0.01
AT_ONCE = 50
FRONT = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"}
TEXT = " token"


def event(number: int, last: int) -> bytes:
    """As vLLM writes it."""
    choice = {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length" if number == last else None}
    choice |= {"stop_reason": None, "prompt_token_ids": None if number else [1, 2, 3], "token_ids": [15043]}
    return written({**FRONT, "choices": [choice]})


def written(document: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(document, separators=(",", ":")).encode()


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "total_tokens": 3 + tokens, "completion_tokens": tokens}


class Engine(asyncio.Protocol):
    """Answers in so many tokens, whole or as a stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if not body:
            self._reply(METRICS % 0)
            return
        asked, loop = json.loads(body), asyncio.get_running_loop()
        tokens = asked["max_tokens"]
        if asked["stream"]:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self.transport.write(head)
            middle = event(1, 2)
            chunks = [event(0, tokens - 1), *[middle] * (tokens - 2), event(tokens - 1, tokens - 1)]
            chunks[-1] += written({**FRONT, "choices": [], "usage": usage(tokens)}) + b"data: [DONE]\n\n"
            self._next(iter(chunks), loop.time())
        else:
            choice = {"index": 0, "text": TEXT * tokens, "logprobs": None, "finish_reason": "length"}
            answer = json.dumps({**FRONT, "choices": [choice], "usage": usage(tokens)}).encode()
            loop.call_later(GAP_S * tokens, self._reply, answer)

    def _reply(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)

    def _next(self, chunks: Iterator[bytes], due_s: float) -> None:
        if self.transport.is_closing():
            return
        chunk = next(chunks, b"")
        if not chunk:
            self.transport.write(b"0\r\n\r\n")
            return
        self.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        asyncio.get_running_loop().call_at(due_s + GAP_S, self._next, chunks, due_s + GAP_S)


async def serve() -> None:
    """On a port of its own, and say which."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


@contextlib.contextmanager
def gateway(command: list[str], port: int) -> Iterator[tuple[int, int]]:
    """A gateway in front of the engine, ready to serve; its port and process."""
    with tempfile.TemporaryDirectory() as folder:
        endpoints = [{"name": "f0", "address": f"127.0.0.1:{port}", "role": "flexible"}]
        (Path(folder) / "endpoints.yaml").write_text(json.dumps({"endpoints": endpoints}), encoding="utf-8")
        config = {
            "model": {"servedNames": ["tiny"]},
            "discovery": {"file": f"{folder}/endpoints.yaml"},
            "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0},
            "limits": {"drainGraceS": 0},
        }
        (Path(folder) / "gateway.yaml").write_text(json.dumps(config), encoding="utf-8")
        with child(*command, "gateway", "--config", f"{folder}/gateway.yaml", line_from="stderr") as (process, line):
            at = json.loads(line)["ports"]
            asyncio.run(until_ready(at["admin"]))
            yield at["proxy"], process.pid


async def measure(port: int, pid: int, tokens: int, requests: int) -> tuple[float, float]:
    """Milliseconds of processor time a request, and how much later than its last token an answer came, the median."""
    pool = UpstreamPool(asyncio.get_running_loop(), connect_timeout_s=5)
    body = json.dumps({"model": "tiny", "prompt": "word", "max_tokens": tokens, "stream": False}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    late_s = []

    async def one(number: int) -> None:
        await asyncio.sleep(GAP_S * number)
        start_s, exchange = time.perf_counter(), Collect()
        await pool.perform(f"127.0.0.1:{port}", head % len(body) + body, exchange)
        late_s.append(time.perf_counter() - start_s - GAP_S * tokens)
        document = json.loads(exchange.body)
        assert exchange.status == 200, document
        assert document["choices"][0]["text"] == TEXT * tokens
        assert document["usage"]["completion_tokens"] == tokens

    before_s = cpu_s(pid)
    for _ in range(requests // AT_ONCE):
        await asyncio.gather(*(one(number) for number in range(AT_ONCE)))
    used_s = cpu_s(pid) - before_s
    pool.close()
    return 1e3 * used_s / (requests // AT_ONCE * AT_ONCE), 1e3 * statistics.median(late_s)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--ballast", type=Path, help="of another installation: .venv/bin/ballast")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        uvloop.run(serve())
        return
    subjects = {"this": [sys.executable, "-m", "ballast_cli"]}
    if options.ballast:
        subjects["other"] = [str(options.ballast)]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with contextlib.ExitStack() as running:
        engine = running.enter_context(
            subprocess.Popen([sys.executable, "-m", "bench.whole_bench", "--engine"], stdout=subprocess.PIPE, text=True)
        )
        running.callback(engine.terminate)
        assert engine.stdout is not None
        port = int(engine.stdout.readline())
        at = {name: running.enter_context(gateway(command, port)) for name, command in subjects.items()}
        for turn in range(options.rounds + 1):
            for tokens in options.tokens:
                for name in list(subjects)[:: 1 if turn % 2 else -1]:
                    figures = uvloop.run(measure(*at[name], tokens, 2 * AT_ONCE))
                    if turn:  # the first round warms up
                        found.setdefault((name, tokens), []).append(figures)
    sys.stdout.write(f"{'':20}{'tokens':>8}{'CPU ms/request':>18}{'delay ms':>12}\n")
    for (name, tokens), rows in found.items():
        cpu_ms, late_ms = (statistics.median(column) for column in zip(*rows, strict=True))
        sys.stdout.write(f"{name:20}{tokens:8}{cpu_ms:18.2f}{late_ms:12.1f}\n")


if __name__ == "__main__":
    main()
