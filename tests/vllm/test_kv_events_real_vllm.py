"""KV events of a real vLLM: the cached tokens that the gateway foresees are those that vLLM counts.

A cache of 96 blocks, so that prompts evict each other; `--enable-prompt-tokens-details` shows what was cached.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest

from ballast_cli.demo.ports import free_ports
from ballast_core.arrays import IntArray
from ballast_core.model import EndpointId, Request
from ballast_core.model.prompt_tokens import PromptTokens
from tests.support.gateway_kit import RunningGateway, running_gateway, until
from tests.support.real_vllm import BLOCK_SIZE, PATIENT, RealVllm, one_engine

POLICY = {"prefill": {"type": "least-uncached-tokens"}, "decode": {"type": "least-uncached-tokens"}}
PORTS = free_ports(2, ["0.0.0.0"])
TELLS_S = 120.0
"""vLLM publishes a step's events on a thread, after its answer: on a busy machine, long after."""
SENTINELS = Random(6)
"""Prompts that come once."""


@pytest.fixture(scope="module")
def publishing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    """One engine that publishes."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{PORTS[0]}",
        "replay_endpoint": f"tcp://*:{PORTS[1]}",
    }
    arguments = ("--kv-events-config", json.dumps(config), "--num-gpu-blocks-override", "96")
    folder = tmp_path_factory.mktemp("kv")
    with one_engine(folder, *arguments, "--enable-prompt-tokens-details", VLLM_SERVER_DEV_MODE="1") as server:
        yield server


class Foreseen:
    """Asks through the gateway, and notes what the Director foresaw."""

    def __init__(self, running: RunningGateway, engine: RealVllm, client: httpx.AsyncClient) -> None:
        self._client = client
        self._engine = engine
        self._running = running
        beliefs = self._beliefs = running.gateway.driver.director.beliefs
        self.figures: list[int] = []
        asked = beliefs.cached_tokens

        def noting(request: Request, slots: IntArray) -> IntArray:
            found = asked(request, slots)
            assert request.tokens is not None
            self.figures.append(int(found.max()))
            return found

        beliefs.cached_tokens = noting  # type: ignore[method-assign]

    async def ask(self, **body: Any) -> tuple[int, int]:
        """Cached tokens: foreseen, and counted by vLLM. What the engine now holds is known when this returns."""
        path = "chat/completions" if "messages" in body else "completions"
        body = {"model": "tiny", "max_tokens": 3, "temperature": 0, "return_token_ids": True, **body}
        self.figures.clear()
        answer = await self._client.post(f"{self._running.url}/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        ids = found.get("prompt_token_ids") or found["choices"][0]["prompt_token_ids"]
        foreseen = self.figures[0]
        await self._settled()
        assert self.held(ids) == (len(ids) - 1) // BLOCK_SIZE * BLOCK_SIZE
        return foreseen, (found["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    async def _settled(self) -> None:
        """The engine tells in order: once it has told of a prompt that nobody else has, it has told of all before."""
        ids = [SENTINELS.randrange(300, 1800) for _ in range(BLOCK_SIZE + 1)]
        body = {"model": "tiny", "prompt": ids, "max_tokens": 1}
        (await self._client.post(f"{self._engine.url}/v1/completions", json=body)).raise_for_status()
        await until(lambda: self.held(ids) == BLOCK_SIZE, TELLS_S)

    def held(self, ids: list[int]) -> int:
        """What the index finds of these now."""
        return int(self._beliefs.reported.match(PromptTokens.of(ids), np.array([0]))[0][0])

    def is_known(self) -> bool:
        known = self._beliefs.reported.known(EndpointId("f0"))
        return known is not None and known.complete and not known.refused


@pytest.mark.vllm
@pytest.mark.rotating(3)
async def test_foreseen_cached_tokens_are_those_that_vllm_counts(tmp_path: Path, publishing: RealVllm) -> None:
    """Token ids, text and chats; after evictions, after a reset, and for a gateway that comes later."""
    random = Random(5)
    patient = {"scrape": PATIENT["scrape"], "ready_s": PATIENT["ready_s"], "policy": POLICY}
    patient["kvEvents"] = {"enabled": True, "port": PORTS[0], "replayPort": PORTS[1], "tokenizeWaitS": 30.0}
    heads = [[random.randrange(300, 1800) for _ in range(BLOCK_SIZE * 8)] for _ in range(4)]
    prompts = [
        random.choice(heads)[: BLOCK_SIZE * random.randrange(1, 9)]
        + [random.randrange(300, 1800) for _ in range(random.randrange(5, 500))]
        for _ in range(20)
    ]
    words = "the index says which blocks of a prompt an engine holds, and how many of them " * 8
    chat = [{"role": "system", "content": words}, {"role": "user", "content": "why?"}]
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        async with running_gateway(tmp_path, {"f0": f"127.0.0.1:{publishing.port}"}, **patient) as running:
            engine = Foreseen(running, publishing, client)
            await until(engine.is_known, 60.0)
            counted = []
            for _ in range(50):
                foreseen, cached = await engine.ask(prompt=random.choice(prompts))
                assert foreseen == cached
                counted.append(cached)
            assert 0 < counted.count(0) < 50
            for body in ({"prompt": words}, {"prompt": words + " more"}, {"messages": chat}):
                foreseen, cached = await engine.ask(**body)
                assert foreseen == cached
                foreseen, again = await engine.ask(**body)
                assert foreseen == again > BLOCK_SIZE
            longer = [*chat, {"role": "assistant", "content": "so"}, {"role": "user", "content": "and then?"}]
            foreseen, cached = await engine.ask(messages=longer)
            assert foreseen == cached > BLOCK_SIZE
            answer = await client.post(f"{publishing.url}/reset_prefix_cache")
            assert answer.status_code == 200
            await engine.ask(prompt=[random.randrange(300, 1800) for _ in range(100)])  # vLLM tells with the next step
            for prompt in prompts[:6]:
                foreseen, cached = await engine.ask(prompt=prompt)
                assert foreseen == cached
            assert engine.is_known()
        async with running_gateway(tmp_path, {"f0": f"127.0.0.1:{publishing.port}"}, **patient) as running:
            engine = Foreseen(running, publishing, client)
            await until(engine.is_known, 60.0)
            for prompt in reversed(prompts[:6]):
                foreseen, cached = await engine.ask(prompt=prompt)
                assert foreseen == cached
