"""Engines that hang, as processes (SIGSTOP) or with live metrics: nobody waits for them, and no byte comes late.

Each answer is checked against its text, token by token (`bench.reliability.kit.client`). No bound here says how fast:
a request that is not helped would wait for minutes, and the clients give up after one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ballast_core.model import EndpointId
from ballast_core.model.life_signs import Pulse
from ballast_core.profiles import SHIPPED_PROFILES
from bench.reliability.kit.asking import Ask, ask
from bench.reliability.kit.client import Fate, Outcome, send
from bench.reliability.kit.engines import Engine
from tests.support.engine_sim import FAST, engine_sim, metric, misbehave
from tests.support.gateway_kit import RunningGateway, running_gateway, until

pytestmark = pytest.mark.rotating(4, each=True)

BOUND_S = 60.0
TOKENS = 300


class Fleet(AsyncExitStack):
    """One prefill and three decode engines as processes, and a gateway in the test's loop."""

    engines: dict[str, Engine]
    gateway: RunningGateway

    async def start(self, folder: Path) -> Fleet:
        self.engines = {name: Engine(name, folder) for name in ("p0", "d0", "d1", "d2")}
        for engine in self.engines.values():
            self.push_async_callback(engine.kill)
        await asyncio.gather(*(engine.start() for engine in self.engines.values()))
        addresses = {name: engine.address for name, engine in self.engines.items()}
        self.gateway = await self.enter_async_context(running_gateway(folder, addresses))
        return self

    def ask(self, asks: Sequence[Ask], name: str = "r") -> list[asyncio.Task[Outcome]]:
        port = self.gateway.port
        return [
            asyncio.create_task(send(port, each, f"{name}-{number}", bound_s=BOUND_S))
            for number, each in enumerate(asks)
        ]

    def decoding(self, name: str) -> int:
        """Streams with a token on this endpoint."""
        director = self.gateway.gateway.driver.director
        slot = director.inventory.slot_of(EndpointId(name))
        return sum(entry.decode_slot == slot and entry.generated_tokens > 0 for entry in director.ledger)

    def pulse(self, name: str) -> Pulse:
        watch = self.gateway.gateway.driver.director.watch
        assert watch is not None
        return watch.pulse(EndpointId(name))[0]

    async def hang(self, name: str, how: str) -> None:
        if how == "stop":
            self.engines[name].stop()
        else:
            await self.engines[name].misbehave({"fault": "freeze"})

    async def wake(self, name: str, how: str) -> None:
        if how == "stop":
            self.engines[name].go_on()
        else:
            await self.engines[name].misbehave()


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet() as made:
        yield await made.start(tmp_path)


def streams(count: int, **more: object) -> list[Ask]:
    return [ask(number, output_tokens=TOKENS, chat=number % 2 == 1, **more) for number in range(count)]  # type: ignore[arg-type]


def fates(outcomes: Sequence[Outcome]) -> list[tuple[Fate, str]]:
    return [(each.fate, each.reason) for each in outcomes]


@pytest.mark.rotating(2)
@pytest.mark.parametrize("how", ["stop", "freeze"])
async def test_streams_of_a_hung_decode_engine_go_on_elsewhere_and_its_late_bytes_reach_nobody(
    fleet: Fleet, how: str
) -> None:
    """Those that run, those that come in the blind window, and whole answers; the engine wakes while they still run."""
    running = fleet.ask(streams(9))
    await until(lambda: fleet.decoding("d0") >= 2)
    await fleet.hang("d0", how)
    later = fleet.ask([ask(100 + number, output_tokens=20, stream=number % 2 == 0) for number in range(6)], "late")
    await until(lambda: fleet.pulse("d0") is Pulse.LOST)
    await until(lambda: not fleet.decoding("d0"))
    await fleet.wake("d0", how)
    outcomes = await asyncio.gather(*running, *later)
    assert fates(outcomes) == [(Fate.WHOLE, "")] * 15
    assert sum(entry.get("rescues", 0) for entry in fleet.gateway.requests()) >= 2
    assert len(fleet.gateway.gateway.driver.director.ledger) == 0


@pytest.mark.rotating(4)
@pytest.mark.parametrize("how", ["stop", "freeze"])
async def test_prefills_of_a_hung_engine_are_sent_elsewhere(tmp_path: Path, how: str) -> None:
    """The other one's; one of two hangs."""
    engines = {name: Engine(name, tmp_path) for name in ("p0", "p1", "d0")}
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            stack.push_async_callback(engine.kill)
        await asyncio.gather(*(engine.start() for engine in engines.values()))
        addresses = {name: engine.address for name, engine in engines.items()}
        gateway = await stack.enter_async_context(running_gateway(tmp_path, addresses))
        warm = [send(gateway.port, ask(50 + number), f"warm-{number}", bound_s=BOUND_S) for number in range(4)]
        assert fates(await asyncio.gather(*warm)) == [(Fate.WHOLE, "")] * 4
        if how == "stop":
            engines["p0"].stop()
        else:
            await engines["p0"].misbehave({"fault": "freeze"})
        asked = [send(gateway.port, ask(number), f"r-{number}", bound_s=BOUND_S) for number in range(6)]
        assert fates(await asyncio.gather(*asked)) == [(Fate.WHOLE, "")] * 6
        assert any(entry.get("retries") for entry in gateway.requests())


async def test_the_admin_api_the_log_and_the_metrics_say_what_the_watch_thinks(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ballast_gateway.app")
    running = fleet.ask(streams(6))
    await until(lambda: fleet.decoding("d0") >= 1)
    await fleet.hang("d0", "freeze")
    await until(lambda: fleet.pulse("d0") is Pulse.LOST)
    async with httpx.AsyncClient() as client:
        listed = (await client.get(f"{fleet.gateway.admin_url}/ballast/v1/endpoints")).json()["endpoints"]
        page = (await client.get(f"{fleet.gateway.admin_url}/metrics")).text
    (told,) = [each["watch"] for each in listed if each["name"] == "d0"]
    assert told["pulse"] == "lost"
    assert "nothing came for" in told["reason"]
    assert 'ballast_gateway_watch_changes_total{pulse="lost"} 1.0' in page
    assert "ballast_gateway_legs_left_total" in page
    said = [record for record in caplog.records if "watch" in record.message]
    assert {record.pulse for record in said} >= {"suspected", "lost"}  # type: ignore[attr-defined]
    await fleet.wake("d0", "freeze")
    await asyncio.gather(*running)


async def test_a_stream_that_cannot_go_on_elsewhere_stays_and_ends_with_its_engine(tmp_path: Path) -> None:
    """Breaking it off would help nobody: the engine wakes, and it is whole."""
    async with engine_sim(profile=FAST, misbehave_api=("127.0.0.1", 0)) as (server, _):
        addresses = {"f0": f"127.0.0.1:{server.port}"}
        async with running_gateway(tmp_path, addresses, model={"servedNames": ["m"]}) as gateway:
            driver = gateway.gateway.driver
            body = {"model": "m", "prompt": [5] * 20, "max_tokens": 2000, "ignore_eos": True, "stream": True}
            events: list[str] = []

            async def read() -> None:
                async with (
                    httpx.AsyncClient(timeout=BOUND_S) as client,
                    client.stream("POST", f"{gateway.url}/v1/completions", json=body | {"seed": 1}) as answer,
                ):
                    events.extend([line async for line in answer.aiter_lines() if line.startswith("data: ")])

            reading = asyncio.create_task(read())
            await until(lambda: any(entry.generated_tokens > 0 for entry in driver.director.ledger))
            await misbehave(server, {"fault": "freeze"})
            watch = driver.director.watch
            assert watch is not None
            await until(lambda: watch.pulse(EndpointId("f0"))[0] is Pulse.LOST)
            assert not reading.done()
            await misbehave(server)
            await reading
            assert events[-1] == "data: [DONE]"
            assert "error" not in events[-2]
            await until(lambda: watch.pulse(EndpointId("f0"))[0] is Pulse.STEADY)


@pytest.mark.rotating(2)
async def test_whole_answers_alone_are_left_on_an_engine_that_hangs_with_live_metrics(tmp_path: Path) -> None:
    """Of a kind that no engine gives as a stream inside: nothing is due from them, but the engine's counts stand."""
    async with AsyncExitStack() as stack:
        sims = [
            await stack.enter_async_context(engine_sim(profile=FAST, misbehave_api=("127.0.0.1", 0))) for _ in range(2)
        ]
        addresses = {f"f{number}": f"127.0.0.1:{server.port}" for number, (server, _) in enumerate(sims)}
        kit = running_gateway(tmp_path, addresses, model={"servedNames": ["m"]}, watch={"requestFloorS": 2})
        gateway = await stack.enter_async_context(kit)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=BOUND_S))
        body = {"model": "m", "prompt": [5] * 20, "max_tokens": 2000, "ignore_eos": True, "seed": 1}
        asked = [asyncio.create_task(client.post(f"{gateway.url}/v1/completions", json=body)) for _ in range(4)]
        for _, engine in sims:
            while not await metric(engine, "vllm:generation_tokens_total"):  # noqa: ASYNC110 (another server's steps)
                await asyncio.sleep(0.05)
        await misbehave(sims[0][0], {"fault": "freeze"})
        answers = await asyncio.gather(*asked)
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [2000] * 4
        assert sum(entry.get("retries", 0) for entry in gateway.requests()) == 2
        await misbehave(sims[0][0])


# --- honest engines that are slow -------------------------------------------------------------------------------------


async def test_preemptions_in_a_small_kv_cache_are_no_hang(tmp_path: Path) -> None:
    """Sixteen streams on a cache for a few of them: most of them are computed again, and wait."""
    small = replace(FAST, kv_tokens=1024)
    async with engine_sim(profile=small) as (server, client):
        one = {"f0": f"127.0.0.1:{server.port}"}
        open_ = {"admission": {"type": "open"}}
        async with running_gateway(tmp_path, one, model={"servedNames": ["m"]}, policy=open_) as gateway:
            bodies = [
                {"model": "m", "prompt": [number + 5] * 100, "max_tokens": 200, "ignore_eos": True, "stream": True}
                for number in range(16)
            ]

            async def tokens(body: dict[str, object]) -> int:
                async with (
                    httpx.AsyncClient(timeout=BOUND_S) as asking,
                    asking.stream("POST", f"{gateway.url}/v1/completions", json=body) as answer,
                ):
                    return sum([b'"finish_reason"' in line.encode() async for line in answer.aiter_lines()])

            counts = await asyncio.gather(*(tokens(body) for body in bodies))
            assert counts == [200] * 16
            assert await metric(client, "vllm:num_preemptions_total") > 0
            assert all("rescues" not in entry and "retries" not in entry for entry in gateway.requests())


@pytest.mark.rotating(4)
@pytest.mark.parametrize("profile", ["h20-qwen3-32b", ""], ids=["profile known", "profile unknown"])
async def test_a_chunk_of_five_seconds_on_the_slowest_engine_is_no_hang(tmp_path: Path, profile: str) -> None:
    """A prompt of a whole token budget is computed beside streams: they get nothing for that one step."""
    slowest = replace(SHIPPED_PROFILES["h20-qwen3-32b"], name="slowest")
    async with engine_sim(profile=slowest, max_num_batched_tokens=8192) as (server, _):
        entry = {"name": "f0", "address": f"127.0.0.1:{server.port}", "role": "flexible", "profile": profile}
        async with running_gateway(tmp_path, {}, wait=False, model={"servedNames": ["m"]}) as gateway:
            gateway.endpoints_file.write_text(f"endpoints: [{entry}]")
            await gateway.ready_endpoints(1)
            short = {"model": "m", "prompt": [5] * 20, "max_tokens": 60, "ignore_eos": True, "stream": True}
            async with httpx.AsyncClient(timeout=BOUND_S) as client:
                url = f"{gateway.url}/v1/completions"
                first = asyncio.create_task(client.post(url, json=short))
                await until(lambda: any(one.generated_tokens for one in gateway.gateway.driver.director.ledger))
                long = {"model": "m", "prompt": [7] * 8100, "max_tokens": 2, "stream": True}
                answers = [await client.post(url, json=long), await first]
            assert [answer.status_code for answer in answers] == [200, 200]
            assert all(b"[DONE]" in answer.content and b"error" not in answer.content for answer in answers)
            assert all("rescues" not in each and "retries" not in each for each in gateway.requests())


async def test_a_long_whole_answer_is_left_to_its_engine(tmp_path: Path) -> None:
    """Nothing is seen of it before its end, whatever others get there. A stream would be sent elsewhere."""
    slow = SHIPPED_PROFILES["h20-qwen3-32b"]
    async with engine_sim(profile=slow) as (one, _), engine_sim(profile=slow) as (two, _):
        addresses = {"f0": f"127.0.0.1:{one.port}", "f1": f"127.0.0.1:{two.port}"}
        watch = {"requestFloorS": 0.5}
        async with running_gateway(tmp_path, addresses, model={"servedNames": ["m"]}, watch=watch) as gateway:
            body = {"model": "m", "prompt": [5] * 20, "max_tokens": 120, "ignore_eos": True, "seed": 1}
            async with httpx.AsyncClient(timeout=BOUND_S) as client:
                answer = await client.post(f"{gateway.url}/v1/completions", json=body)
            assert answer.json()["usage"]["completion_tokens"] == 120
            (entry,) = gateway.requests()
            assert entry["e2e_s"] > 2
            assert "retries" not in entry
