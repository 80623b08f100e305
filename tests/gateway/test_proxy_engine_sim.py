"""The proxy face in front of engine-sims: prefill, KV hand-off and decode between servers of vLLM's protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_core.beliefs.survival_book import POOLED
from ballast_gateway.traffic_classes import LEAST_REQUESTS
from ballast_sim.engine import EngineRequest
from ballast_sim.engine_sim.server import EngineSimServer
from tests.support.engine_sim import tiny_engine
from tests.support.gateway_kit import RunningGateway, running_gateway, until

PROMPT = list(range(1000, 1300))
ROLES = {"p": "kv_producer", "d": "kv_consumer"}


class Line(AsyncExitStack):
    """Two prefill and two decode engines, and the gateway."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__()
        self._tmp_path = tmp_path
        self.engines: dict[str, EngineSimServer] = {}

    async def start(self, **settings: Any) -> RunningGateway:
        for name in ("p0", "p1", "d0", "d1"):
            self.engines[name] = await self.enter_async_context(
                tiny_engine(ROLES[name[0]], "--served-model-name", "tiny", "tiny-alias")
            )
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in self.engines.items()}
        return await self.enter_async_context(running_gateway(self._tmp_path, addresses, **settings))

    async def metric(self, engine: str, name: str) -> float:
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"http://127.0.0.1:{self.engines[engine].port}/metrics")).text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[tuple[Line, RunningGateway]]:
    async with Line(tmp_path) as made:
        yield made, await made.start()


async def test_the_decode_engine_pulls_the_kv_of_the_prefill_engine(line: tuple[Line, RunningGateway]) -> None:
    """It computes nothing of the prompt but its last token, and the tokens are those of one engine alone."""
    made, gateway = line
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "return_token_ids": True}
    async with httpx.AsyncClient(timeout=60) as client:
        through = (await client.post(f"{gateway.url}/v1/completions", json=body)).json()
        alone = (await client.post(f"http://127.0.0.1:{made.engines['d1'].port}/v1/completions", json=body)).json()
    assert through["usage"]["completion_tokens"] == 12
    assert through["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]
    entry = gateway.request()
    pulled = await made.metric(
        entry["decode"], 'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"'
    )
    assert pulled >= len(PROMPT) - 1
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def test_streams_of_chat_are_measured(line: tuple[Line, RunningGateway]) -> None:
    """Forty at once, over both prefill and both decode engines; every token counted."""
    _, gateway = line
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "how are you"}],
        "max_tokens": 20,
        "stream": True,
        "ignore_eos": True,
    }

    async def one(client: httpx.AsyncClient) -> int:
        count = 0
        async with client.stream("POST", f"{gateway.url}/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            async for text in answer.aiter_lines():
                if text.startswith("data: {"):
                    count += bool(json.loads(text[6:])["choices"][0]["delta"].get("content"))
        return count

    async with httpx.AsyncClient(timeout=60) as client:
        counts = await asyncio.gather(*(one(client) for _ in range(40)))
    assert counts == [20] * 40
    lines = gateway.requests()
    assert {entry["outcome"] for entry in lines} == {"completed"}
    assert {entry["output_tokens"] for entry in lines} == {20}
    assert {entry["decode"] for entry in lines} == {"d0", "d1"}
    assert {entry["prefill"] for entry in lines} == {"p0", "p1"}
    assert all(0 < entry["ttft_s"] < entry["e2e_s"] and entry["tpot_s"] > 0 for entry in lines)


async def test_an_engine_stops_when_the_client_leaves(line: tuple[Line, RunningGateway]) -> None:
    """Nothing runs on, and nothing stays in the ledger."""
    made, gateway = line
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 50_000, "stream": True, "ignore_eos": True}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{gateway.url}/v1/completions", json=body) as answer,
    ):
        async for _ in answer.aiter_lines():
            break
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
    async with asyncio.timeout(20):
        while sum(  # noqa: ASYNC110 - only the page of the engine says it
            [await made.metric(name, "vllm:num_requests_running{") for name in ("d0", "d1")]
        ):
            await asyncio.sleep(0.05)


async def test_a_mistake_that_only_the_engine_sees_is_told_in_its_words(line: tuple[Line, RunningGateway]) -> None:
    """Too many tokens: a 400, not a retry."""
    _, gateway = line
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 10_000_000}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{gateway.url}/v1/completions", json=body)
    assert answer.status_code == 400
    entry = gateway.request()
    assert (entry["outcome"], entry["reason"]) == ("invalid", "upstream-400")


@pytest.mark.rotating(3)
@pytest.mark.parametrize("policy", ["lmetric", "least-uncached-tokens"])
async def test_turns_of_a_conversation_are_prefilled_where_their_history_is(tmp_path: Path, policy: str) -> None:
    """Eight conversations begin at once and spread; two more turns of each, one by one, stay where the first one was.

    The engines confirm it: they find the history in their own caches. Under the name of an adapter the same words are
    another prompt.
    """
    async with Line(tmp_path) as made:
        gateway = await made.start(policy={"prefill": {"type": policy}, "decode": {"type": "least-requests"}})
        async with httpx.AsyncClient(timeout=60) as client:

            async def turn(messages: list[dict[str, Any]], name: str, model: str = "tiny") -> None:
                body = {"model": model, "messages": messages, "max_tokens": 8}
                headers = {"x-request-id": name}
                answer = await client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                said = answer.json()["choices"][0]["message"]["content"]
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And now? " * 30}]

            talks = [[{"role": "user", "content": f"{number} is the number I think of. " * 60}] for number in range(8)]
            opening = list(talks[0])
            await asyncio.gather(*(turn(talk, f"0-{number}") for number, talk in enumerate(talks)))
            for later in (1, 2):
                for number, talk in enumerate(talks):
                    await turn(talk, f"{later}-{number}")
            prefills = {entry["request_id"]: entry["prefill"] for entry in gateway.requests()}
            by_turn = [[prefills[f"{at}-{number}"] for number in range(len(talks))] for at in range(3)]
            assert by_turn[0] == by_turn[1] == by_turn[2]
            assert set(by_turn[0]) == {"p0", "p1"}
            hits = sum([await made.metric(name, "vllm:prefix_cache_hits_total") for name in ("p0", "p1")])
            asked = sum(entry["prompt_tokens"] for entry in gateway.requests())
            assert hits > asked / 3

            index = gateway.gateway.driver.director.beliefs.prefixes
            known = len(index)
            await turn(opening, "adapter", model="tiny-alias")
            assert len(index) > known


async def test_placements_that_read_no_prefixes_read_no_prompts(tmp_path: Path) -> None:
    """Nobody pays for names that no policy asks for."""
    async with Line(tmp_path) as made:
        gateway = await made.start(policy={"prefill": {"type": "least-requests"}, "decode": {"type": "least-tokens"}})
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "tiny", "prompt": PROMPT * 10, "max_tokens": 1}
            assert (await client.post(f"{gateway.url}/v1/completions", json=body)).status_code == 200
        beliefs = gateway.gateway.driver.director.beliefs
        assert (beliefs.block_size, len(beliefs.prefixes)) == (0, 0)


async def test_objectives_have_lengths_of_their_own(tmp_path: Path) -> None:
    """Under a policy that reads lengths; one that came too seldom goes with its model."""
    async with Line(tmp_path) as made:
        gateway = await made.start(policy={"prefill": {"type": "least-requests"}, "decode": {"type": "sibyl"}})
        async with httpx.AsyncClient(timeout=60) as client:
            for objective in ["batch"] * (LEAST_REQUESTS + 1) + ["once"]:
                body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 2}
                headers = {"x-llm-d-inference-objective": objective}
                assert (await client.post(f"{gateway.url}/v1/completions", json=body, headers=headers)).is_success
        lengths = gateway.gateway.driver.director.beliefs.lengths
        assert 0 < lengths.known_slot("tiny") < lengths.known_slot("tiny|batch")
        assert lengths.known_slot("tiny|once") == POOLED


HOSTILE: dict[str, dict[str, Any]] = {
    "an image": {
        "content": [
            {"type": "text", "text": "What is this? " * 50},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 200_000}},
        ]
    },
    "parts of any kind": {"content": [None, 7, "x" * 500, [1, [2]], {"type": "text"}, {"type": ["text"], "text": {}}]},
    "lists in lists": {"content": json.loads("[" * 300 + "]" * 300)},
    "a lone surrogate": {"content": "\ud800" * 1000},
    "tool calls that are none": {"content": None, "tool_calls": {"function": [[[]]]}, "name": 9},
    "a huge number": {"content": "x" * 500, "x": 10**4000},
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
async def test_no_message_breaks_a_gateway_that_reads_prompts(tmp_path: Path, message: dict[str, Any]) -> None:
    """The engine answers or refuses; the gateway's own error would be a 500. A good request still gets through."""
    async with Line(tmp_path) as made:
        gateway = await made.start(policy={"prefill": {"type": "lmetric"}, "decode": {"type": "ballast"}})
        async with httpx.AsyncClient(timeout=60) as client:
            for tools in (None, [message], {"a": [message] * 50}):
                body = {"model": "tiny", "messages": [{"role": "user", **message}], "max_tokens": 2, "tools": tools}
                raw = json.dumps(body).encode()
                answer = await client.post(f"{gateway.url}/v1/chat/completions", content=raw)
                assert answer.status_code in (200, 400), answer.text
            good = {"model": "tiny", "prompt": PROMPT, "max_tokens": 2}
            assert (await client.post(f"{gateway.url}/v1/completions", json=good)).status_code == 200
        await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def test_engines_get_the_queue_orders_priority_in_both_legs(tmp_path: Path) -> None:
    """Whatever the client wrote into its body or vLLM's header; its own class still comes first."""
    priorities: dict[str, list[int]] = {}
    async with AsyncExitStack() as stack:
        addresses = {}
        for name in ("p0", "d0"):
            engine = await stack.enter_async_context(
                tiny_engine(
                    ROLES[name[0]], "--served-model-name", "tiny", "tiny-alias", "--scheduling-policy", "priority"
                )
            )
            addresses[name] = f"127.0.0.1:{engine.port}"
            priorities[name] = []

            def submit(spec: EngineRequest, sink: Any, *, name: str = name, add: Any = engine.service.submit) -> None:
                priorities[name].append(spec.priority)
                add(spec, sink)

            engine.service.submit = submit  # type: ignore[method-assign,assignment]
        placement = {"type": "least-requests"}
        queue = {"type": "uniboost", "parameters": {"enginePriority": True}}
        policy = {"prefill": placement, "decode": placement, "queue": queue}
        trust = {"priorities": True}
        gateway = await stack.enter_async_context(running_gateway(tmp_path, addresses, policy=policy, trust=trust))
        async with httpx.AsyncClient(timeout=60) as client:
            for own, header in ((None, None), (0, None), (5, None), (None, "-2")):
                body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3}
                body |= {} if own is None else {"priority": own}
                headers = {} if header is None else {"x-vllm-priority": header}
                answer = await client.post(f"{gateway.url}/v1/completions", json=body, headers=headers)
                assert answer.status_code == 200
    assert priorities["p0"] == priorities["d0"]
    first, second, behind, urgent = priorities["p0"]
    assert max(abs(first), abs(second)) < 10**5  # milliseconds since the first one, less a boost
    assert urgent < -(10**11) < first < 10**11 < behind
