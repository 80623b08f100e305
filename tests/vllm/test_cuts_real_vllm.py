"""Prompts that two real vLLM processes compute together: one the first part, the other the rest and the output."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_gateway.proxy import cutting
from tests.support.cuts import CUTTING, cut_at
from tests.support.gateway_kit import running_gateway
from tests.support.real_vllm import BLOCK_SIZE, LEASE_S, PATIENT, RealVllm, flexible_pair, warm_up
from tests.support.streams import heard

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
TOKENS = 48
ATTEMPTS = 5
"""Requests until one was cut in peace: on few cores a hand-off may stall, and the gateway rightly turns elsewhere."""
EJECTED_S = 11.0
"""The gateway gives an engine that it has given up another try after this."""
TEXT = "The harbour is quiet at night, and the ships lie still. "


@pytest.fixture(scope="module")
def flexible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealVllm, RealVllm]]:
    """Two that read parts of prompts from each other."""
    with flexible_pair(tmp_path_factory.mktemp("vllm-flexible")) as (first, second):
        warm_up(first, second)
        warm_up(second, first)
        yield first, second


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway waits as long as these engines keep KV, less what it does by default."""
    monkeypatch.setattr(cutting, "FIRST_TOKEN_DUE_S", LEASE_S - 10.0)


def new_client() -> httpx.AsyncClient:
    """Without connections that are kept: where processors are short, servers close them just when they are used."""
    return httpx.AsyncClient(timeout=300, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


async def pulled(client: httpx.AsyncClient, server: RealVllm) -> float:
    """Prompt tokens whose KV came from elsewhere."""
    page = (await client.get(f"{server.url}/metrics")).text
    found = re.search(r'prompt_tokens_by_source_total\{.*source="external_kv_transfer"\} (\S+)', page)
    return float(found[1]) if found else 0.0


REQUESTS: dict[str, tuple[str, dict[str, Any], float, int]] = {
    "ids, at a block's end": (COMPLETION, {"prompt": list(range(100, 420))}, 0.5, 160),
    "ids, inside of a block": (COMPLETION, {"prompt": list(range(420, 740))}, 0.35, 112),
    "ids, before the last one": (COMPLETION, {"prompt": list(range(740, 1060))}, 1.0, 319),
    "text": (COMPLETION, {"prompt": TEXT * 30}, 0.6, 0),
    "a chat": (CHAT, {"messages": [{"role": "user", "content": TEXT * 25}]}, 0.5, 0),
    "a chat of some turns": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": TEXT * 20}]},
                {"role": "assistant", "content": "I see.", "name": "a"},
                {"role": "user", "content": "And then?"},
            ]
        },
        0.7,
        0,
    ),
}


FIRST, *OTHERS = REQUESTS


@pytest.mark.vllm
@pytest.mark.rotating(3)
@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.four_cores) for name in OTHERS)])
async def test_a_cut_prompt_says_what_one_engine_says(
    tmp_path: Path, flexible: tuple[RealVllm, RealVllm], name: str
) -> None:
    """Greedy: the same text, end and usage, always; cut in peace, the second engine has pulled the first part, once."""
    path, request, ratio, expected = REQUESTS[name]
    first, second = flexible
    body = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    addresses = {f"f{number}": f"127.0.0.1:{server.port}" for number, server in enumerate(flexible)}
    async with (
        running_gateway(tmp_path, addresses, policy=CUTTING, **PATIENT) as gateway,
        new_client() as client,
    ):
        cut_at(gateway, ratio)
        for attempt in range(ATTEMPTS):
            body |= another(request, attempt)
            before = await pulled(client, second)
            cut = await heard(client, f"{gateway.url}{path}", body, "r")
            entry = gateway.requests()[-1]
            got = await pulled(client, second) - before
            alone = await heard(client, f"{first.url}{path}", body, "r")
            again = await heard(client, f"{second.url}{path}", body, "r")
            assert cut == alone
            assert again == alone, "what was pulled must not spoil the second engine's prefix cache"
            assert entry["outcome"] == "completed"
            if not entry.get("retries") and entry["decode"] == "f1":
                break
            await asyncio.sleep(EJECTED_S)  # where the machine stood still, an engine may be in doubt for so long
        else:
            pytest.fail(f"none of {ATTEMPTS} requests was cut in peace: {gateway.requests()}")
    assert (entry["prefill"], entry["decode"]) == ("f0", "f1")
    assert entry["cut_tokens"] == (expected or entry["cut_tokens"])
    assert got == entry["cut_tokens"] >= 64
    assert alone["usage"]["prompt_tokens"] > entry["cut_tokens"]


def another(request: dict[str, Any], attempt: int) -> dict[str, Any]:
    """The request with a beginning that no engine has seen yet, as long as before."""
    if not attempt:
        return request
    if "prompt" not in request:
        return {"messages": [{"role": "system", "content": f"Attempt {attempt}."}, *request["messages"]]}
    prompt = request["prompt"]
    return {"prompt": f"{attempt}{prompt[1:]}" if isinstance(prompt, str) else [50 + attempt, *prompt[1:]]}


@pytest.mark.vllm
@pytest.mark.rotating(3)
@pytest.mark.four_cores
async def test_a_part_that_is_cached_already_is_not_pulled_twice(
    tmp_path: Path, flexible: tuple[RealVllm, RealVllm]
) -> None:
    """The second engine has the beginning from an earlier request, whole blocks of it: it pulls what is missing."""
    _, second = flexible
    shared, prompt = list(range(1100, 1200)), list(range(1100, 1500))
    plain = {"model": "tiny", "temperature": 0, "ignore_eos": True, "stream": True}
    addresses = {f"f{number}": f"127.0.0.1:{server.port}" for number, server in enumerate(flexible)}
    async with (
        running_gateway(tmp_path, addresses, policy=CUTTING, **PATIENT) as gateway,
        new_client() as client,
    ):
        cut_at(gateway, 0.5)
        await heard(client, f"{second.url}{COMPLETION}", {**plain, "prompt": shared, "max_tokens": 1}, "s")
        before = await pulled(client, second)
        body = {**plain, "prompt": prompt, "max_tokens": TOKENS}
        cut = await heard(client, f"{gateway.url}{COMPLETION}", body, "r")
        got = await pulled(client, second) - before
        alone = await heard(client, f"{flexible[0].url}{COMPLETION}", body, "r")
    assert cut == alone
    assert got == 200 - len(shared) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.vllm
@pytest.mark.rotating(3)
@pytest.mark.four_cores
async def test_many_cut_at_once(tmp_path: Path, flexible: tuple[RealVllm, RealVllm]) -> None:
    """By Libra itself: each answer is that of one engine, and some of them were cut."""
    addresses = {f"f{number}": f"127.0.0.1:{server.port}" for number, server in enumerate(flexible)}
    even = {"partition": {"type": "libra", "parameters": {"cuts": "prompt", "epsS": 0, "ttftSloS": 0}}}
    async with (
        running_gateway(tmp_path, addresses, policy=even, **PATIENT) as gateway,
        new_client() as client,
    ):
        bodies = [
            {
                "model": "tiny",
                "prompt": [(number * 37 + at * at) % 1900 + 50 for at in range(300 + 40 * number)],
                "max_tokens": TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
            for number in range(8)
        ]
        answers = await asyncio.gather(
            *(heard(client, f"{gateway.url}{COMPLETION}", body, f"r{at}") for at, body in enumerate(bodies))
        )
        alone = [
            await heard(client, f"{flexible[0].url}{COMPLETION}", body, f"r{at}") for at, body in enumerate(bodies)
        ]
        entries = gateway.requests()
    assert answers == alone
    assert {entry["outcome"] for entry in entries} == {"completed"}
    assert any(entry.get("cut_tokens") for entry in entries)
