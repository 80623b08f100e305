"""LoRA adapters on sockets: what engines say of them, who is sent where, and which names clients may use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_cli.demo.ports import free_ports
from ballast_core.model import Request
from ballast_gateway.driver import Ticket
from ballast_gateway.observe.exposition import AdapterGauges, BadExposition, read_gauges
from ballast_gateway.observe.model_card import read_card
from tests.support.engine_sim import engine_sim
from tests.support.gateway_kit import RunningGateway, running_gateway, until

pytestmark = pytest.mark.rotating(4, each=True)

_GAUGES = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'


def page(*samples: str) -> bytes:
    return (_GAUGES + "".join(f"vllm:lora_requests_info{sample}\n" for sample in samples)).encode()


def sample(running: str, waiting: str, at: str, most: str = "4") -> str:
    return f'{{max_lora="{most}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} {at}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(page(), None, id="no-lora"),
        pytest.param(
            page(sample("", "", "1.7e+09"), sample("a,b", "c", "1.8e+09"), sample("d", "", "1.6e+09")),
            AdapterGauges(frozenset("ab"), frozenset("c"), 4),
            id="the-newest",
        ),
        pytest.param(
            b"# HELP vllm:lora_requests_info Running\n# TYPE vllm:lora_requests_info gauge\n"
            + page(sample("", "", "5.0")),
            AdapterGauges(frozenset(), frozenset(), 4),
            id="idle",
        ),
        pytest.param(
            page(sample("a b , c", "", "5.0", "x")), AdapterGauges(frozenset({"a b", "c"}), frozenset(), 0), id="odd"
        ),
        pytest.param(page(sample("a}b", "", "5.0")), AdapterGauges(frozenset({"a}b"}), frozenset(), 4), id="brace"),
        pytest.param(
            page(sample("a", "", "5.0"), sample("b", "", "5.5"))[:-1],
            AdapterGauges(frozenset("b"), frozenset(), 4),
            id="cut",
        ),
    ],
)
def test_the_newest_sample_says_what_is_at_work(text: bytes, expected: AdapterGauges | None) -> None:
    """vLLM keeps a sample for each state that there has been."""
    assert read_gauges(text).adapters == expected


def test_a_sample_without_a_number_is_no_page_of_an_engine() -> None:
    """As for the other metrics."""
    with pytest.raises(BadExposition):
        read_gauges(page('{max_lora="4"} soon'))


def test_adapters_are_the_models_with_a_parent() -> None:
    """As vLLM lists them."""
    models = [{"id": "m", "max_model_len": 9, "parent": None}, {"id": "a", "max_model_len": None, "parent": "m"}]
    card = read_card(json.dumps({"data": models}).encode(), ["m"])
    assert (card.names, card.adapters, card.max_model_len) == (("m", "a"), frozenset("a"), 9)


@asynccontextmanager
async def serving(
    folder: Path, *engines: tuple[str, ...], **more: Any
) -> AsyncIterator[tuple[RunningGateway, httpx.AsyncClient]]:
    """A gateway before an engine-sim for each set of adapters."""
    async with AsyncExitStack() as stack:
        addresses = {}
        for k, adapters in enumerate(engines):
            modules = {name: f"/lora/{name}" for name in adapters}
            server, _ = await stack.enter_async_context(engine_sim(lora_modules=modules, max_loras=2))
            addresses[f"f{k}"] = f"127.0.0.1:{server.port}"
        running = await stack.enter_async_context(
            running_gateway(folder, addresses, model={"servedNames": ["m"]}, **more)
        )
        await until(lambda: all(one.told is not None for one in running.gateway.fleet.members.values()))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=20, trust_env=False))
        yield running, client


def ask(model: str, tokens: int = 2) -> dict[str, Any]:
    return {"model": model, "prompt": "once upon a time", "max_tokens": tokens, "ignore_eos": True}


def served(running: RunningGateway) -> list[str]:
    return [entry["decode"] for entry in running.requests() if entry["status"] == 200]


async def test_requests_for_an_adapter_reach_only_engines_that_have_it(tmp_path: Path) -> None:
    """Each of two engines has one; the base model goes to both."""
    async with serving(tmp_path, ("a",), ("b",), adapters={"discover": True}) as (running, client):
        for model in ("a", "b", "a", "b", "a"):
            answer = await client.post("/v1/completions", json=ask(model))
            assert (answer.status_code, answer.json()["model"]) == (200, model)
        assert served(running) == ["f0", "f1", "f0", "f1", "f0"]
        names = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
        assert names == ["m", "a", "b"]


async def test_requests_follow_the_adapter_that_is_at_work(tmp_path: Path) -> None:
    """Both have it; one runs it."""
    async with serving(tmp_path, ("a", "b"), ("a", "b"), adapters={"names": ["a", "b"]}) as (running, client):
        long = asyncio.create_task(client.post("/v1/completions", json=ask("a", 1500)))
        members = running.gateway.fleet.members.values()
        await until(lambda: any(one.told is not None and "a" in one.told.running for one in members))
        (at,) = [str(one.endpoint.id) for one in members if one.told is not None and "a" in one.told.running]
        for _ in range(3):
            await client.post("/v1/completions", json=ask("a"))
        assert served(running) == [at] * 3
        await client.post("/v1/completions", json=ask("m"))
        await client.post("/v1/completions", json=ask("m"))
        assert set(served(running)[3:]) != {at}, "the base model goes where there is less to do"
        assert (await long).status_code == 200


@pytest.mark.parametrize(
    ("adapters", "model", "status", "code"),
    [
        pytest.param({}, "a", 404, "model-not-found", id="not-admitted"),
        pytest.param({"discover": True}, "z", 404, "model-not-found", id="nobody-has-it"),
        pytest.param({"names": ["z"]}, "z", 503, "no-endpoints", id="listed-and-not-loaded"),
        pytest.param({"names": ["a"]}, "b", 404, "model-not-found", id="not-listed"),
    ],
)
async def test_names_that_are_not_served_have_an_answer_that_says_so(
    adapters: dict[str, Any], model: str, status: int, code: str, tmp_path: Path
) -> None:
    """404 names what is served; 503 is for what should be, and is not yet."""
    async with serving(tmp_path, ("a", "b"), adapters=adapters) as (_, client):
        answer = await client.post("/v1/completions", json=ask(model))
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        if status == 404:
            assert "'m'" in answer.json()["error"]["message"]


async def test_the_tokens_of_a_prompt_are_asked_of_engines_that_serve_its_model(tmp_path: Path) -> None:
    """The others would answer 404, and the request would be placed without its tokens."""
    port, replay_port = free_ports(2)
    events = {"enabled": True, "port": port, "replayPort": replay_port, "tokenizeWaitS": 10.0}
    more = {"adapters": {"discover": True}, "kvEvents": events, "policy": {"decode": {"type": "lmetric"}}}
    async with serving(tmp_path, ("a",), ("b",), **more) as (running, client):
        opened = running.gateway.driver.open
        known: list[int | None] = []

        def noting(request: Request) -> Ticket:
            known.append(None if request.tokens is None else len(request.tokens))
            return opened(request)

        running.gateway.driver.open = noting  # type: ignore[assignment]
        for number in range(4):
            await client.post("/v1/completions", json=ask("a") | {"prompt": f"once upon {number}"})
        assert None not in known
        assert len(known) == 4
