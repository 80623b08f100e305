"""Overload on sockets: a burst at a gateway with its default policy, in front of an engine-sim with two places."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.support.engine_sim import engine_sim
from tests.support.gateway_kit import RunningGateway, running_gateway, until

BURST = 120
BODY = {"model": "tiny", "max_tokens": 60, "ignore_eos": True}


@asynccontextmanager
async def crowded(tmp_path: Path) -> AsyncIterator[tuple[RunningGateway, httpx.AsyncClient]]:
    """A bound of half a second to the first token, and answers that take a fifth of it each."""
    policy = {"admission": {"type": "expected-ttft", "parameters": {"maxTtftS": 0.5}}}
    limits = httpx.Limits(max_connections=2 * BURST)
    async with (
        engine_sim(max_num_seqs=2, served_model_names=("tiny",)) as (server, _),
        running_gateway(tmp_path, {"f0": f"127.0.0.1:{server.port}"}, policy=policy) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=60, limits=limits, trust_env=False) as client,
    ):
        yield gateway, client


async def ask(client: httpx.AsyncClient, number: int, key: str = "one") -> httpx.Response:
    body = BODY | {"prompt": list(range(1000 + number, 1100 + number))}
    return await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})


async def test_a_burst_is_served_in_part_and_the_rest_is_told_when_to_come_back(tmp_path: Path) -> None:
    """429 at once, each with its own time; metrics and the log say why; nothing is left in the books."""
    async with crowded(tmp_path) as (gateway, client):
        answers = await asyncio.gather(*(ask(client, number) for number in range(BURST)))
        by_status = Counter(answer.status_code for answer in answers)
        assert by_status.keys() == {200, 429}
        assert by_status[429] > BURST / 2
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.headers["x-ballast-reason"] for answer in refused} == {"saturated"}
        after_s = [int(answer.headers["retry-after"]) for answer in refused]
        assert 1 <= min(after_s) < max(after_s) <= 45
        page = (await client.get(f"{gateway.admin_url}/metrics")).text
        shed = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("ballast_gateway_shed_total")]
        assert sum(float(value) for _, value in shed) == by_status[429]
        director = gateway.gateway.driver.director
        assert (len(director.ledger), len(director.queue), director.queue.backlog.tokens) == (0, 0, 0)


async def test_a_greedy_key_does_not_starve_another(tmp_path: Path) -> None:
    """The other key asks for a little, while the first has asked for a hundred times as much."""
    async with crowded(tmp_path) as (_, client):
        greedy = [asyncio.create_task(ask(client, number, "greedy")) for number in range(BURST)]
        await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED)
        modest = [(await ask(client, 500 + number, "modest")).status_code for number in range(2)]
        assert modest == [200, 200]
        assert 429 in {task.result().status_code for task in greedy if task.done()}
        await asyncio.gather(*greedy)


async def test_clients_that_time_out_while_they_wait_leave_nothing(tmp_path: Path) -> None:
    """No request in the books, none in the queue, none at the engine."""
    async with crowded(tmp_path) as (gateway, client):
        director = gateway.gateway.driver.director
        asked = list[asyncio.Task[httpx.Response]]()

        def some_wait() -> bool:
            """Asks once more where a slow machine had answered all of a burst before any was seen to wait."""
            if all(task.done() for task in asked):
                first = len(asked)
                asked.extend([asyncio.create_task(ask(client, first + number)) for number in range(BURST)])
            return len(director.queue) > 0

        await until(some_wait)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: len(director.ledger) == 0)
        assert (len(director.queue), director.queue.backlog.tokens) == (0, 0)
        assert (await ask(client, 999)).status_code == 200
