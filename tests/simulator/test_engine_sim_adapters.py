"""engine-sim's LoRA adapters: vLLM's names, its metric, and its rule for adapters in a step."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from ballast_sim.engine_sim.options import OptionError, parse_options
from tests.support.engine_sim import engine_sim

MODULES = {"a": "/lora/a", "b": "/lora/b", "c": "/lora/c"}


async def complete(client: httpx.AsyncClient, model: str, tokens: int = 4, prompt: str = "once upon a time") -> Any:
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    return (await client.post("/v1/completions", json=body)).json()


async def at_work(client: httpx.AsyncClient) -> tuple[set[str], set[str]]:
    """Adapters that run and that wait, by the newest sample."""
    page = (await client.get("/metrics")).text
    samples = re.findall(r'lora_requests_info{max_lora="\d+",running_lora_adapters="(.*)",waiting.*="(.*)"} (.*)', page)
    runs, waits, _ = max(samples, key=lambda sample: float(sample[2]))
    return set(filter(None, runs.split(","))), set(filter(None, waits.split(",")))


async def seen(client: httpx.AsyncClient, runs: set[str], waits: set[str]) -> None:
    """Wait until the metric says so."""
    async with asyncio.timeout(20):
        while await at_work(client) != (runs, waits):
            pass  # each look lets the engine go on


async def test_adapters_are_models_with_a_parent() -> None:
    """As vLLM lists them; a name that is not there is a 404."""
    async with engine_sim(lora_modules=MODULES) as (_, client):
        models = (await client.get("/v1/models")).json()["data"]
        assert [(model["id"], model["parent"], model["root"]) for model in models] == [
            ("m", None, "m"),
            ("a", "m", "/lora/a"),
            ("b", "m", "/lora/b"),
            ("c", "m", "/lora/c"),
        ]
        assert (await complete(client, "a"))["model"] == "a"
        assert (await complete(client, "d"))["error"]["code"] == 404


async def test_an_adapter_has_output_and_cache_of_its_own() -> None:
    """The same prompt, another answer; its blocks are not those of the base model."""
    async with engine_sim(lora_modules=MODULES, prompt_tokens_details=True) as (_, client):
        prompt = "a prompt of many words " * 40
        answers = [await complete(client, model, prompt=prompt) for model in ("m", "a", "m", "a")]
        texts = [answer["choices"][0]["text"] for answer in answers]
        assert texts[0] == texts[2] != texts[1] == texts[3]
        cached = [(answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0) for answer in answers]
        assert cached[:2] == [0, 0]
        assert cached[2] == cached[3] > 0


async def test_no_more_adapters_run_than_may_and_others_are_not_held_up() -> None:
    """With one place, `b` waits while `a` runs; the base model passes it."""
    async with engine_sim(lora_modules=MODULES, max_loras=1) as (_, client):
        first = asyncio.create_task(complete(client, "a", 400))
        await seen(client, runs={"a"}, waits=set())
        second = asyncio.create_task(complete(client, "b", 2))
        await seen(client, runs={"a"}, waits={"b"})
        await complete(client, "m", 2)
        assert not second.done()
        assert not first.done(), "the base model needed no place"
        await asyncio.gather(first, second)
        assert await at_work(client) == (set(), set())


@pytest.mark.rotating(3)
async def test_loading_an_adapter_holds_up_the_step() -> None:
    """The first request pays, the next one does not; with one place `b` puts `a` out."""
    async with engine_sim(lora_modules=MODULES, max_loras=1, lora_load_s=0.5) as (_, client):
        loop = asyncio.get_running_loop()
        took = []
        for model in ("a", "a", "b", "a"):
            began_s = loop.time()
            await complete(client, model, 1)
            took.append(loop.time() - began_s >= 0.5)
        assert took == [True, False, True, True]


async def test_without_lora_there_is_no_metric() -> None:
    """As in vLLM without --enable-lora."""
    async with engine_sim() as (_, client):
        assert "lora" not in (await client.get("/metrics")).text


def test_flags_are_vllms() -> None:
    """NAME=PATH or JSON; --enable-lora is needed."""
    flags = ["m", "--enable-lora", "--max-loras", "2", "--lora-modules", "a=/x", '{"name": "b", "path": "/y"}']
    options, warnings = parse_options(flags, {})
    assert (dict(options.lora_modules), options.max_loras, warnings) == ({"a": "/x", "b": "/y"}, 2, [])
    assert options.engine_config().max_loras == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lora-modules", "a=/x"], "needs --enable-lora"),
        (["--enable-lora", "--lora-modules", "a"], "must be NAME=PATH"),
        (["--enable-lora", "--lora-modules", "{}"], "must be NAME=PATH"),
        (["--enable-lora", "--max-loras", "0"], "must be 1 or more"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], said: str) -> None:
    """With the fix."""
    with pytest.raises(OptionError, match=said):
        parse_options(["m", *flags], {})
