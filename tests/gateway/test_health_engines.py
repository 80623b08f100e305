"""One bad engine among good ones, as engine-sims on sockets: no client sees it, and it gets few requests."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_sim.engine_sim.server import EngineSimServer
from tests.support.engine_sim import misbehave, tiny_engine
from tests.support.gateway_kit import RunningGateway, running_gateway, until

pytestmark = pytest.mark.rotating(4, each=True)

NAMES = ("p0", "p1", "d0", "d1", "d2")
ROLES = {"p": "kv_producer", "d": "kv_consumer"}
STREAMS = 60
TOKENS = 5
GENERATE = {"paths": ["/v1/completions", "/v1/chat/completions"]}
FAULTS: dict[str, dict[str, Any]] = {
    "401": {"fault": "wrong-key", "scope": GENERATE},
    "403": {"fault": "status", "status": 403},
    "404": {"fault": "wrong-model"},
    "408": {"fault": "status", "status": 408},
    "400-small-context": {"fault": "small-context", "tokens": 20},
    "413": {"fault": "status", "status": 413},
    "429": {"fault": "status", "status": 429},
    "500": {"fault": "status", "status": 500},
    "503": {"fault": "status", "status": 503},
    "error-event": {"fault": "error-event", "after": 0},
    "error-event-later": {"fault": "error-event", "after": 2},
    "reset": {"fault": "reset", "after": "head"},
    "end": {"fault": "end", "after": 2},
}


class Line(AsyncExitStack):
    """Two prefill and three decode engines, and the gateway."""

    def __init__(self) -> None:
        super().__init__()
        self.engines: dict[str, EngineSimServer] = {}

    async def start(self, tmp_path: Path, **settings: Any) -> RunningGateway:
        for name in NAMES:
            engine = tiny_engine(ROLES[name[0]], "--misbehave-api", "0")
            self.engines[name] = await self.enter_async_context(engine)
        addresses = {name: f"127.0.0.1:{server.port}" for name, server in self.engines.items()}
        return await self.enter_async_context(running_gateway(tmp_path, addresses, **settings))


def body(number: int, **more: Any) -> dict[str, Any]:
    ids = [number, *range(1000, 1039)]
    return {"model": "tiny", "prompt": ids, "max_tokens": TOKENS, "stream": True, "ignore_eos": True, **more}


async def ask(client: httpx.AsyncClient, url: str, number: int, **more: Any) -> int:
    """The tokens that came of a stream, or the status if it is none."""
    tokens, done = 0, False
    async with client.stream("POST", f"{url}/v1/completions", json=body(number, **more)) as answer:
        if answer.status_code != 200:
            return answer.status_code
        async for line in answer.aiter_lines():
            assert '"error"' not in line, line
            done = done or line == "data: [DONE]"
            tokens += line.startswith("data: {") and bool(json.loads(line[6:])["choices"][0]["text"])
    assert done
    return tokens


async def endpoints(gateway: RunningGateway, client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = (await client.get(f"{gateway.admin_url}/ballast/v1/endpoints")).json()
    return {one["name"]: one["health"] for one in answer["endpoints"]}


@pytest.mark.rotating(3)
@pytest.mark.parametrize("bad", ["p0", "d0"], ids=["prefill", "decode"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_misconfigured_engine_costs_no_client_its_answer(
    tmp_path: Path, fault: dict[str, Any], bad: str
) -> None:
    """Sixty streams, six at a time; most of those that it gets come before the first outcome elsewhere."""
    async with Line() as line:
        gateway = await line.start(tmp_path)
        await misbehave(line.engines[bad], fault)
        turns = asyncio.Semaphore(6)
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

            async def one(number: int) -> int:
                async with turns:
                    return await ask(client, gateway.url, number)

            assert await asyncio.gather(*(one(number) for number in range(STREAMS))) == [TOKENS] * STREAMS
            health = await endpoints(gateway, client)
            page = (await client.get(f"{gateway.admin_url}/metrics")).text
        assert sum(report["failed_legs"] for name, report in health.items() if name != bad) == 0
        assert health[bad]["failed_legs"] <= STREAMS // 3
        if health[bad]["state"] != "healthy":
            assert "failed" in health[bad]["reason"]
            assert 'ballast_gateway_ejections_total{cause="in-a-row"} 0.0' not in page or "share" in page
        await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
        assert {entry["outcome"] for entry in gateway.requests()} == {"completed"}
        assert {entry["output_tokens"] for entry in gateway.requests()} == {TOKENS}


async def test_a_bad_engine_is_ejected_logged_and_counted_and_comes_back_when_it_is_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ejected, half-open, healthy: in the admin API, in metrics, and one line of the log at each change."""
    caplog.set_level("INFO", "ballast_gateway.app")
    health = {"ejectionS": 0.3, "failuresInARow": 3}
    async with Line() as line:
        gateway = await line.start(tmp_path, health=health, policy={"decode": {"type": "round-robin"}})
        await misbehave(line.engines["d0"], FAULTS["500"])
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

            def changes() -> list[tuple[str, str, str]]:
                logged = [vars(record) for record in caplog.records if getattr(record, "event", "") == "health"]
                return [(str(one["endpoint"]), str(one["state"]), one["reason"]) for one in logged]

            async def until_it_is(state: str) -> None:
                for number in range(2000):
                    assert await ask(client, gateway.url, number) == TOKENS
                    if changes() and changes()[-1][1] == state:
                        return
                raise AssertionError(f"it never was {state}")

            await until_it_is("ejected")
            assert changes() == [("d0", "ejected", "3 legs in a row failed, the last one: error (500)")]
            page = (await client.get(f"{gateway.admin_url}/metrics")).text
            assert 'ballast_gateway_ejections_total{cause="in-a-row"} 1.0' in page
            assert 'ballast_gateway_endpoint_health{role="decode",state="healthy"} 2.0' in page
            assert "ballast_gateway_retry_budget " in page
            await misbehave(line.engines["d0"])
            await until_it_is("healthy")
            assert (await endpoints(gateway, client))["d0"]["state"] == "healthy"
        states = [state for _, state, _ in changes()]
        assert states == [*["ejected", "probing"] * (len(states) // 2), "healthy"]
        assert changes()[-1] == ("d0", "healthy", "a probe succeeded")


@pytest.mark.parametrize("status", [400, 401, 429])
async def test_what_every_engine_answers_reaches_the_client_as_it_is(tmp_path: Path, status: int) -> None:
    """A client's own error, or an overload of all: no engine is blamed for it."""
    async with Line() as line:
        gateway = await line.start(tmp_path)
        for server in line.engines.values():
            await misbehave(server, {"fault": "status", "status": status})
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answer = await client.post(f"{gateway.url}/v1/completions", json=body(1))
            assert answer.status_code == status
            assert answer.json()["error"]["code"] == status
            health = await endpoints(gateway, client)
        assert {report["state"] for report in health.values()} == {"healthy"}
        if status != 429:
            assert {report["failed_legs"] for report in health.values()} == {0}
        entry = gateway.request()
        assert (entry["outcome"], entry["reason"]) == (
            "rejected" if status == 429 else "invalid",
            f"upstream-{status}",
        )


async def test_a_request_that_kills_engines_kills_two_at_most(tmp_path: Path) -> None:
    """It is answered with a reason of its own; the engine that is left serves the others."""
    async with Line() as line:
        gateway = await line.start(tmp_path, scrape={"intervalS": 60.0})
        for name in ("d0", "d1", "d2"):
            await misbehave(line.engines[name], {"fault": "reset", "after": "request", "scope": {"prompt": "POISON"}})
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answer = await client.post(f"{gateway.url}/v1/completions", json=body(1, prompt="a POISON b", stream=True))
            assert answer.status_code == 502
            assert answer.json()["error"]["code"] == "breaks-engines"
            assert "retry-after" not in answer.headers
            health = await endpoints(gateway, client)
            assert sum(health[name]["failed_legs"] for name in ("d0", "d1", "d2")) == 2
            assert await ask(client, gateway.url, 2) == TOKENS


async def test_retries_beyond_the_budget_get_the_engines_answer(tmp_path: Path) -> None:
    """With no budget but its floor, and an error of every engine at once."""
    async with Line() as line:
        gateway = await line.start(tmp_path, health={"retryRatio": 0.0})
        for server in line.engines.values():
            await misbehave(server, {"fault": "status", "status": 500})
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answers = await asyncio.gather(
                *(client.post(f"{gateway.url}/v1/completions", json=body(number)) for number in range(30))
            )
        reasons = [answer.headers["x-ballast-reason"] for answer in answers]
        assert {answer.status_code for answer in answers} == {503}
        assert "retry-budget" in reasons
        assert set(reasons) <= {"upstream-failed", "retry-budget"}
        assert sum(entry.get("retries", 0) for entry in gateway.requests()) == 10
