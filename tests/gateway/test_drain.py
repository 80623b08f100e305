"""The gateway's own end, on processes: what SIGTERM does to streams, answers, new requests and idle connections."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.engine_sim import engine_sim, eventually, metric
from tests.support.gateway_kit import Answer, endpoints_text, post, raw_exchange, running_gateway

COMMAND = [sys.executable, "-m", "ballast_cli", "gateway", "--config"]
PATH = "/v1/completions"
LONG = {"model": "m", "prompt": [1, 2, 3, 4], "max_tokens": 3000, "ignore_eos": True}
SHORT = {**LONG, "max_tokens": 300}
"""About a second."""


@dataclass(slots=True)
class GatewayProcess:
    """A gateway that runs as a process of its own."""

    process: asyncio.subprocess.Process
    ports: dict[str, int]

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def ended(self) -> tuple[int | None, list[dict[str, Any]]]:
        """Wait for its end; its status and its request log."""
        async with asyncio.timeout(60):
            out, _ = await self.process.communicate()
        return self.process.returncode, [json.loads(line) for line in out.splitlines()]


@asynccontextmanager
async def gateway(tmp_path: Path, addresses: dict[str, str], **limits: float) -> AsyncIterator[GatewayProcess]:
    """A started one, with its endpoints ready."""
    (tmp_path / "endpoints.yaml").write_text(endpoints_text(addresses))
    settings = {
        "model": {"servedNames": ["m"]},
        "discovery": {"file": str(tmp_path / "endpoints.yaml")},
        "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0, "extProc": 0, "grpcHealth": 0},
        "scrape": {"intervalS": 0.05},
        "limits": {"drainGraceS": 0} | limits,
    }
    config = tmp_path / "gateway.yaml"
    config.write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        *COMMAND, str(config), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        ports = json.loads(await process.stderr.readline())["ports"]
        url = f"http://127.0.0.1:{ports['admin']}/readyz"
        async with httpx.AsyncClient(trust_env=False) as client:
            await eventually(lambda: answers(client, url, 200), timeout_s=30)
        yield GatewayProcess(process, ports)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@dataclass(slots=True)
class Stream:
    """A stream under way: `whole` reads it to its end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    begun: bytes

    async def rest(self) -> bytes:
        async with asyncio.timeout(60):
            body = self.begun + await self.reader.read()
        self.writer.close()
        return body


async def stream(port: int, body: dict[str, Any]) -> Stream:
    """Ask for a stream, and wait for its first token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(PATH, {**body, "stream": True}))
    async with asyncio.timeout(30):
        begun = await reader.readuntil(b"text_completion")
    return Stream(reader, writer, begun)


async def has_ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(20):
        assert await reader.read() == b""


def shutdown_error(answer: Answer) -> None:
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["connection"] == "close"
    assert answer.json()["error"]["code"] == "gateway-shutdown"
    assert "retry" in answer.json()["error"]["message"]


@pytest.mark.rotating(3)
async def test_streams_run_to_their_end_and_new_requests_are_refused(tmp_path: Path) -> None:
    """/readyz says 503 at once. A new request gets 503 and Retry-After, however long the drain lasts."""
    async with (
        engine_sim() as (engine, _),
        gateway(tmp_path, {"f0": f"127.0.0.1:{engine.port}"}) as running,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        streams = [await stream(running.ports["proxy"], SHORT) for _ in range(4)]
        running.signal()
        url = f"http://127.0.0.1:{running.ports['admin']}/readyz"
        await eventually(lambda: answers(client, url, 503))
        [refused] = await raw_exchange(running.ports["proxy"], post(PATH, SHORT))
        shutdown_error(refused)
        for each in streams:
            body = await each.rest()
            assert b"data: [DONE]" in body
            assert body.endswith(b"0\r\n\r\n")
        status, log = await running.ended()
        assert status == 0
        assert sorted((entry["outcome"], entry.get("reason")) for entry in log) == [
            *[("completed", None)] * 4,
            ("rejected", "gateway-shutdown"),
        ]


@pytest.mark.rotating(4)
async def test_connections_without_requests_close_at_once_and_others_after_their_answer(tmp_path: Path) -> None:
    """A kept one that lies idle, and one that sends a request in the grace period: that is served."""
    models = b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n"
    async with (
        engine_sim() as (engine, _),
        gateway(tmp_path, {"f0": f"127.0.0.1:{engine.port}"}, drainGraceS=2) as running,
    ):
        busy = await stream(running.ports["proxy"], SHORT)
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", running.ports["proxy"])
        idle_writer.write(models)
        fresh, fresh_writer = await asyncio.open_connection("127.0.0.1", running.ports["proxy"])
        assert b"connection: close" not in await idle.readuntil(b"}]}")
        running.signal()
        await has_ended(idle)
        fresh_writer.write(models)
        async with asyncio.timeout(20):
            answer = await fresh.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert b"data: [DONE]" in await busy.rest()
        for writer in (idle_writer, fresh_writer):
            writer.close()
        assert (await running.ended())[0] == 0


async def test_a_gateway_that_ends_is_not_made_ready_again(tmp_path: Path) -> None:
    """An order to drain no more is about an order before it, not about its end."""
    async with running_gateway(tmp_path, {}, wait=False, limits={"drainGraceS": 0.5}) as running:
        draining = "draining: the gateway is about to stop"
        gateway = running.gateway
        for on in (True, False):
            gateway._asked_to_drain(on)
            assert (draining in gateway.not_ready()) is on
        ending = asyncio.create_task(gateway.drain())
        await asyncio.sleep(0)
        gateway._asked_to_drain(False)
        assert draining in gateway.not_ready()
        await ending


@pytest.mark.rotating(3)
@pytest.mark.parametrize("second", [False, True], ids=["at the time limit", "at a second signal"])
async def test_what_still_runs_is_told_why_it_ends(tmp_path: Path, *, second: bool) -> None:
    """Streams by an error event between two events, whole answers and prefills by a 503; all of it booked so."""
    async with (
        engine_sim() as (engine, client),
        gateway(tmp_path, {"f0": f"127.0.0.1:{engine.port}"}, drainTimeoutS=300 if second else 0.5) as running,
    ):
        port = running.ports["proxy"]
        streams = [await stream(port, LONG) for _ in range(3)]
        whole = asyncio.create_task(raw_exchange(port, post(PATH, LONG)))
        await eventually(lambda: is_busy(client, 4))
        running.signal()
        if second:
            await asyncio.sleep(0.2)
            assert running.process.returncode is None
            running.signal()
        for each in streams:
            *events, error, end = (await each.rest()).split(b"\n\n")
            assert json.loads(error.partition(b"data: ")[2])["error"]["code"] == "gateway-shutdown"
            assert end.strip() == b""
            assert all(b"data: {" in event for event in events)
        [answer] = await whole
        shutdown_error(answer)
        status, log = await running.ended()
        assert status == 0
        assert {entry["reason"] for entry in log} == {"gateway-shutdown"}
        assert sorted(entry["outcome"] for entry in log) == [*["failed"] * 3, "rejected"]
        assert all(entry["output_tokens"] > 0 for entry in log if entry["outcome"] == "failed")


@pytest.mark.rotating(3)
async def test_a_request_that_has_half_come_is_told_and_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    """Whichever of the connections is looked at first."""
    async with (
        engine_sim() as (engine, _),
        gateway(tmp_path, {"f0": f"127.0.0.1:{engine.port}"}, drainTimeoutS=0.5) as running,
    ):
        halves = [await asyncio.open_connection("127.0.0.1", running.ports["proxy"]) for _ in range(8)]
        for _, writer in halves:
            writer.write(post(PATH, SHORT)[:-1])
        held = await stream(running.ports["proxy"], LONG)
        running.signal()
        assert b"gateway-shutdown" in await held.rest()
        for reader, writer in halves:
            async with asyncio.timeout(20):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"gateway-shutdown" in answer
            writer.close()
        status, log = await running.ended()
        assert status == 0
        assert {entry["reason"] for entry in log} == {"gateway-shutdown"}


async def is_busy(engine: httpx.AsyncClient, requests: int) -> bool:
    return await metric(engine, "vllm:num_requests_running") >= requests


async def answers(client: httpx.AsyncClient, url: str, status: int) -> bool:
    return (await client.get(url)).status_code == status
