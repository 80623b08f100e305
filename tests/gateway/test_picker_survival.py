"""Pickers that die and hang behind a real Envoy that is set up as docs/picker.md recommends.

Pickers are processes. No stream may notice, and new requests go to the picker that is left.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bench.reliability.kit.engines import MODEL
from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.installation import Installation
from tests.support.envoy import EnvoySetup, PickerAt, envoy, needs_envoy
from tests.support.upstream import Upstream, upstream

pytestmark = [pytest.mark.envoy, needs_envoy, pytest.mark.rotating(4, each=True)]

PATH = "/v1/completions"
RECOMMENDED = EnvoySetup(response_body=None, survives=True)
STREAMS, NEW = 20, 60
INSTALLATION = Installation()


@dataclass(frozen=True, slots=True)
class Stage:
    """Client -> Envoy -> pickers and upstreams. Streams go on after their first event when `gate` is set."""

    client: httpx.AsyncClient
    pickers: Sequence[GatewayProcess]
    upstreams: Sequence[Upstream]
    gate: asyncio.Event

    async def ask(self) -> httpx.Response:
        return await self.client.post(PATH, json={"model": MODEL, "prompt": "hello"})

    async def stream(self, begun: asyncio.Semaphore) -> list[int]:
        """The numbers of its events; releases `begun` at the first."""
        numbers: list[int] = []
        body = {"model": MODEL, "prompt": "hello", "stream": True}
        async with self.client.stream("POST", PATH, json=body) as answer:
            async for line in answer.aiter_lines():
                if line:
                    numbers.append(json.loads(line.removeprefix("data: "))["n"])
                    if len(numbers) == 1:
                        begun.release()
        return numbers

    async def booked(self) -> float:
        return sum([await picker.in_flight() for picker in self.pickers])


@asynccontextmanager
async def stage(folder: Path, pickers: int, setup: EnvoySetup = RECOMMENDED) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(upstream()) for _ in range(3)]
        gate = asyncio.Event()
        for one in upstreams:
            one.held = gate
        engines: Any = [
            SimpleNamespace(name=f"f{n}", address=one.address, role="flexible") for n, one in enumerate(upstreams)
        ]
        running = []
        for n in range(pickers):
            gateway = GatewayProcess(INSTALLATION, engines, folder, f"picker-{n}", {"face": "Picker"})
            stack.push_async_callback(gateway.kill)
            running.append(gateway)
        await asyncio.gather(*(gateway.start() for gateway in running))
        at = [PickerAt(gateway.ports["ext_proc"], gateway.ports["grpc_health"]) for gateway in running]
        proxy = await stack.enter_async_context(envoy(at, setup, folder / "envoy"))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=proxy.url, timeout=60))
        yield Stage(client, running, upstreams, gate)


@asynccontextmanager
async def streaming(on: Stage) -> AsyncIterator[None]:
    """Streams that have begun within, and go on and end whole after it."""
    begun = asyncio.Semaphore(0)
    streams = [asyncio.create_task(on.stream(begun)) for _ in range(STREAMS)]
    async with asyncio.timeout(60):
        for _ in range(STREAMS):
            await begun.acquire()
    yield
    on.gate.set()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*streams) == [[0, 1, 2]] * STREAMS


@pytest.mark.rotating(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_one_of_two_pickers_is_lost_and_nobody_notices(number: signal.Signals, tmp_path: Path) -> None:
    """Killed, hung or restarted: every stream goes on, every new request is placed."""
    async with stage(tmp_path, pickers=2) as on:
        async with streaming(on):
            on.pickers[0].program.signal(number)
            answers = await asyncio.gather(*(on.ask() for _ in range(NEW)))
        assert [answer.status_code for answer in answers] == [200] * NEW


@pytest.mark.rotating(4)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_without_a_picker_streams_go_on_and_new_requests_are_told(number: signal.Signals, tmp_path: Path) -> None:
    """503 with OpenAI's error, within seconds also where the picker only hangs."""
    async with stage(tmp_path, pickers=1) as on:
        async with streaming(on):
            on.pickers[0].program.signal(number)
            answer = await on.ask()
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "picker-unavailable"


async def test_answers_of_pickers_and_engines_pass_as_they_are(tmp_path: Path) -> None:
    """Only what Envoy itself says is replaced."""
    async with stage(tmp_path, pickers=1) as on:
        unknown = await on.client.post(PATH, json={"model": "other", "prompt": "hello"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model-not-found")
        for one in on.upstreams:
            one.status = 500
        answer = await on.ask()
        assert (answer.status_code, "served_by" in answer.json()) == (500, True)


async def test_the_ledger_follows_scrapes(tmp_path: Path) -> None:
    """Streams stay on the books as long as they run, though the picker sees nothing of them."""
    async with stage(tmp_path, pickers=1) as on:
        async with streaming(on):
            for _ in range(4):  # so many scrapes at least
                await asyncio.sleep(0.25)
                assert await on.booked() == STREAMS
        async with asyncio.timeout(30):
            while await on.booked():  # noqa: ASYNC110 (another process's state)
                await asyncio.sleep(0.05)
