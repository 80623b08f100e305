"""Agents beside two real vLLM processes: a plan with prefill and decode, a move by order, and a cut."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_gateway.podapi.messages import Ended, LegFailed, Moved, MoveFailed, Progressed
from ballast_gateway.podapi.plan import Plan
from ballast_gateway.proxy import cutting
from tests.support.agents import RunningAgent, agents, cut_at, plan, plan_header
from tests.support.pod_api_calls import listening
from tests.support.real_vllm import LEASE_S, RealVllm, flexible_pair, warm_up

COMPLETIONS = "/v1/completions"
ATTEMPTS = 8
"""Streams until one has gone all the way: on few cores tokens join into events, and a hand-off may stall."""

PATIENCE_S = 2.0 * LEASE_S
"""An engine that holds KV polls without a pause: with few cores, another may be silent for long, and then goes on."""


@pytest.fixture(scope="module")
def flexible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealVllm, RealVllm]]:
    """Two that hand KV, and parts of prompts, to each other."""
    with flexible_pair(tmp_path_factory.mktemp("vllm-agents")) as (first, second):
        for one, other in ((first, second), (second, first)):
            warm_up(one, other)
        yield first, second


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents wait as long as these engines keep KV, less what they do by default."""
    monkeypatch.setattr(cutting, "FIRST_TOKEN_DUE_S", LEASE_S - 10.0)


def request(prompt: list[int], tokens: int) -> dict[str, Any]:
    """A greedy stream with token ids."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return body | {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}


async def said(url: str, body: dict[str, Any], planned: Plan | None = None) -> tuple[str, list[int], dict[str, Any]]:
    """Text, token ids and usage of a stream."""
    text, ids, usage = "", list[int](), dict[str, Any]()
    name, _, value = ("", "", "") if planned is None else plan_header(planned).partition(": ")
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(timeout=300, trust_env=False, limits=limits) as client,
        client.stream("POST", f"{url}{COMPLETIONS}", json=body, headers={name: value} if name else {}) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    text += choice["text"]
                    ids += choice.get("token_ids") or []
    return text, ids, {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}


async def pulled(server: RealVllm) -> float:
    """Prompt tokens whose KV came from elsewhere."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        page = (await client.get(f"{server.url}/metrics")).text
    found = re.search(r'prompt_tokens_by_source_total\{.*source="external_kv_transfer"\} (\S+)', page)
    return float(found[1]) if found else 0.0


def url(agent: RunningAgent) -> str:
    return f"http://127.0.0.1:{agent.port}"


def beside(servers: tuple[RealVllm, RealVllm]) -> dict[str, str]:
    return {f"f{number}": f"127.0.0.1:{server.port}" for number, server in enumerate(servers)}


@pytest.mark.vllm
@pytest.mark.rotating(3)
async def test_a_planned_request_says_what_one_engine_says(tmp_path: Path, flexible: tuple[RealVllm, RealVllm]) -> None:
    """Prefill on one, decode on the other with the KV pulled; text, ids and usage are those of one engine."""
    async with agents(tmp_path, beside(flexible)) as running:
        first, at = running["f0"], running["f1"]
        for number in range(ATTEMPTS):
            body = request(list(range(100 + 10 * number, 300 + 10 * number)), 32)
            alone, before = await said(flexible[0].url, body), await pulled(flexible[1])
            async with listening(at.pod_api, PATIENCE_S) as (_, lines):
                through = await said(url(at), body, plan(at.place, first.place, id=f"pd{number}"))
                assert through == alone
                failed = False
                while not isinstance(line := await lines.next(), Ended):
                    failed = failed or isinstance(line, LegFailed)
                assert (line.outcome, line.output_tokens) == ("completed", 32)
            if not failed and await pulled(flexible[1]) - before >= 199:
                return
    pytest.fail(f"in none of {ATTEMPTS} requests the KV was pulled")


@pytest.mark.vllm
@pytest.mark.rotating(3)
async def test_a_move_by_order_says_what_one_engine_says(tmp_path: Path, flexible: tuple[RealVllm, RealVllm]) -> None:
    """The stream goes on on the other engine, through its agent."""
    async with agents(tmp_path, beside(flexible)) as running:
        at = running["f0"]
        for number in range(ATTEMPTS):
            body = request(list(range(700 + number, 900 + number)), 600)
            alone = await said(flexible[1].url, body)
            async with listening(at.pod_api, PATIENCE_S) as (_, lines):
                asking = asyncio.create_task(said(url(at), body, plan(at.place, id=f"move{number}")))
                await lines.until(Progressed)
                ordered = await at.order_move(f"move{number}", "f1")
                assert ordered.status == 202, ordered.body
                while not isinstance(line := await lines.next(), Moved | MoveFailed | Ended):
                    pass
                assert await asking == alone
                if isinstance(line, Moved):
                    assert line.target == "f1"
                    return
    pytest.fail(f"none of {ATTEMPTS} streams moved")


@pytest.mark.vllm
@pytest.mark.rotating(3)
async def test_a_cut_prompt_says_what_one_engine_says(tmp_path: Path, flexible: tuple[RealVllm, RealVllm]) -> None:
    """The first 160 tokens there, the rest and the output here."""
    async with agents(tmp_path, beside(flexible)) as running:
        first, at = running["f0"], running["f1"]
        for number in range(ATTEMPTS):
            body = request(list(range(100 + 7 * number, 420 + 7 * number)), 32)
            alone, before = await said(flexible[0].url, body), await pulled(flexible[1])
            segments = cut_at(160, first.place, at.place)
            planned = plan(at.place, first.place, segments=segments, prompt_tokens=320, id=f"cut{number}")
            assert await said(url(at), body, planned) == alone
            if await pulled(flexible[1]) - before == 160:
                return
    pytest.fail(f"in none of {ATTEMPTS} requests the first part's KV was pulled")
