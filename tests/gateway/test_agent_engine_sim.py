"""Agents beside engine-sims: KV that passes between pods, moves by order of the pod API, cuts, and engines that die."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_gateway.podapi.messages import Ended, LegFailed, Moved, MoveFailed, Progressed
from ballast_gateway.podapi.server import METRICS
from ballast_sim.engine_sim.options import parse_options
from ballast_sim.engine_sim.server import EngineSimServer
from tests.support.agents import RunningAgent, agents, cut_at, plan, plan_header
from tests.support.gateway_kit import assert_openai_error, until
from tests.support.pod_api_calls import call, listening

pytestmark = pytest.mark.rotating(4, each=True)

ROLES = {"p": "kv_producer", "d": "kv_consumer", "f": "kv_both"}
PROMPT = list(range(1000, 1300))
SLOW = ("--time-scale", "2")
"""Tokens then come slowly enough that a move is done before the end."""


class Fleet(AsyncExitStack):
    """Engines, and an agent beside each."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__()
        self._tmp_path = tmp_path
        self.engines: dict[str, EngineSimServer] = {}

    async def start(self, *names: str, options: tuple[str, ...] = (), **more: Any) -> dict[str, RunningAgent]:
        for name in names:
            extra = {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}} if name[0] == "f" else {}
            transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": ROLES[name[0]], **extra})
            parsed, _ = parse_options(
                [
                    *("model", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "0"),
                    *("--profile", "h200-llama3-8b", "--kv-transfer-config", transfer, *options),
                ],
                {"VLLM_NIXL_SIDE_CHANNEL_PORT": "0"},
            )
            engine = self.engines[name] = EngineSimServer(parsed)
            await engine.start()
            self.push_async_callback(engine.stop)
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in self.engines.items()}
        return await self.enter_async_context(agents(self._tmp_path, addresses, **more))

    async def alone(self, name: str, body: dict[str, Any]) -> list[int]:
        """What one engine says."""
        return (await ids_of(self.engines[name].port, body))[0]

    async def pulled(self, name: str) -> float:
        """Prompt tokens whose KV came from elsewhere."""
        async with httpx.AsyncClient(trust_env=False) as client:
            page = (await client.get(f"http://127.0.0.1:{self.engines[name].port}/metrics")).text
        found = re.search(r'prompt_tokens_by_source_total\{.*source="external_kv_transfer"\} (\S+)', page)
        return float(found[1]) if found else 0.0


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path) as made:
        yield made


def stream(tokens: int, prompt: object = PROMPT) -> dict[str, Any]:
    """A greedy one."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    return body | {"return_token_ids": True, "stream_options": {"include_usage": True}}


async def ids_of(port: int, body: dict[str, Any], *headers: str) -> tuple[list[int], bytes]:
    """The token ids of a stream, and its bytes without the engine's own names and times."""
    ids: list[int] = []
    said = b""
    sent = dict(each.split(": ", 1) for each in headers) | {"x-request-id": "same"}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        url = f"http://127.0.0.1:{port}/v1/completions"
        async with client.stream("POST", url, json=body, headers=sent) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                said += re.sub(rb'"created":\d+', b'"created":0', line.encode()) + b"\n"
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        ids += choice.get("token_ids") or []
    assert said.endswith(b"data: [DONE]\n\n")
    return ids, said


async def test_the_decode_engine_pulls_the_kv_through_its_agent(fleet: Fleet) -> None:
    """It computes the last token of the prompt alone, and says what one engine says."""
    running = await fleet.start("p0", "d0", "d1")
    at = running["d0"]
    through, _ = await ids_of(at.port, stream(24), plan_header(plan(at.place, running["p0"].place)))
    assert through == await fleet.alone("d1", stream(24))
    assert await fleet.pulled("d0") >= len(PROMPT) - 1


async def test_a_stream_is_moved_by_order_and_says_what_an_unmoved_one_says(fleet: Fleet) -> None:
    """To another pod, through its agent, and back; every byte is as without a move."""
    running = await fleet.start("p0", "d0", "d1", options=SLOW)
    at, other = running["d0"], running["d1"]
    unmoved, expected = await ids_of(at.port, stream(300), plan_header(plan(at.place, running["p0"].place, id="r1")))
    async with listening(at.pod_api) as (_, lines):
        asking = asyncio.create_task(
            ids_of(at.port, stream(300), plan_header(plan(at.place, running["p0"].place, id="r1")))
        )
        await lines.until(Progressed)
        assert (await at.order_move("r1", "d1")).status == 202
        again = await at.order_move("r1", "d1")
        assert assert_openai_error(again)["code"] == "moving"
        moved = await lines.until(Moved)
        assert isinstance(moved, Moved)
        assert (moved.key, moved.target) == ("gw-a/r1", "d1")
        assert other.agent.face.passing == 1
        assert (await at.order_move("r1", "d1")).status == 422
        assert (await at.order_move("r1", "d0")).status == 202
        back = await lines.until(Moved)
        assert isinstance(back, Moved)
        assert back.target == "d0"
        ids, said = await asking
        ended = await lines.until(Ended)
        assert isinstance(ended, Ended)
        assert (ended.outcome, ended.output_tokens) == ("completed", 300)
    assert ids == unmoved
    assert said == expected
    text = (await call(at.pod_api, "GET", METRICS)).body.decode()
    assert 'ballast_agent_migrations_total{outcome="moved"} 2' in text
    pause = re.search(r"^ballast_agent_migration_pause_seconds_total (.+)$", text, re.MULTILINE)
    assert pause is not None
    assert float(pause[1]) > 0
    await until(lambda: other.agent.face.passing == 0)


async def test_a_move_to_an_engine_that_is_dead_leaves_the_stream_where_it_is(fleet: Fleet) -> None:
    """And says so."""
    running = await fleet.start("p0", "d0", "d1", options=SLOW)
    at = running["d0"]
    unmoved = await fleet.alone("d1", stream(200))
    await fleet.engines["d1"].stop()
    async with listening(at.pod_api) as (_, lines):
        asking = asyncio.create_task(ids_of(at.port, stream(200), plan_header(plan(at.place, running["p0"].place))))
        await lines.until(Progressed)
        assert (await at.order_move("r1", "d1")).status == 202
        failed = await lines.until(MoveFailed)
        assert isinstance(failed, MoveFailed)
        assert failed.target == "d1"
    assert (await asking)[0] == unmoved


async def test_a_cut_prompt_is_computed_by_two_engines(fleet: Fleet) -> None:
    """The plan's first segment there, the rest and the output on the agent's own engine."""
    running = await fleet.start("f0", "f1")
    first, at = running["f0"], running["f1"]
    segments = cut_at(160, first.place, at.place)
    planned = plan(at.place, first.place, segments=segments, prompt_tokens=len(PROMPT))
    ids, _ = await ids_of(at.port, stream(24), plan_header(planned))
    assert ids == await fleet.alone("f0", stream(24))
    assert await fleet.pulled("f1") == 160


async def test_an_engine_that_dies_in_the_middle_is_replaced_and_no_token_is_lost(fleet: Fleet) -> None:
    """Behind a live agent: the stream goes on on another pod."""
    running = await fleet.start("p0", "d0", "d1", options=SLOW)
    at = running["d0"]
    unmoved = await fleet.alone("d1", stream(200))
    async with listening(at.pod_api) as (_, lines):
        asking = asyncio.create_task(ids_of(at.port, stream(200), plan_header(plan(at.place, running["p0"].place))))
        await lines.until(Progressed)
        await fleet.engines["d0"].stop()
        failed = await lines.until(LegFailed)
        assert isinstance(failed, LegFailed)
        assert (failed.stage, failed.endpoint) == ("decode", "d0")
        assert (await asking)[0] == unmoved
    assert at.agent.face.counts.rescues == 1


async def test_many_requests_at_once_are_all_told_of(fleet: Fleet) -> None:
    """Each opened and ended once, in one numbered stream of lines, and nothing is left."""
    running = await fleet.start("p0", "d0")
    at = running["d0"]
    async with listening(at.pod_api) as (_, lines):
        asked = [
            ids_of(at.port, stream(12), plan_header(plan(at.place, running["p0"].place, id=f"r{number}")))
            for number in range(60)
        ]
        answers = await asyncio.gather(*asked)
        assert {len(ids) for ids, _ in answers} == {12}
        ended: set[str] = set()
        while len(ended) < 60:
            line = await lines.until(Ended)
            assert isinstance(line, Ended)
            assert line.key not in ended
            ended.add(line.key)
    assert at.agent.face.held == {}
    assert at.agent.feed.state().requests == ()
