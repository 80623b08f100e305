"""The client of the reliability experiments: whatever is wrong with an answer, it says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bench.reliability.__main__ import module, names
from bench.reliability.kit.asking import CHAT, ask
from bench.reliability.kit.client import Fate, Outcome, at_rate, send
from bench.reliability.kit.installation import Installation
from bench.reliability.kit.tally import table, tally
from tests.support.engine_sim import engine_sim
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, json_reply, scripted_engine

ASKS = {
    "stream": {},
    "stream with usage": {"usage": True},
    "chat": {"chat": True},
    "whole": {"stream": False},
    "whole chat": {"stream": False, "chat": True},
    "own end": {"vllm_xargs": {"ballast_output_tokens": 7}, "ignore_eos": False},
    "sampled": {"replayable": False},
}


@pytest.mark.parametrize("more", ASKS.values(), ids=ASKS.keys())
async def test_the_answer_of_a_healthy_engine_is_the_text_that_is_known_beforehand(more: dict[str, Any]) -> None:
    asked = ask(1, output_tokens=12, **more)
    async with engine_sim(served_model_names=("tiny",)) as (server, _):
        outcome = await send(server.port, asked, "one", bound_s=20.0)
    assert (outcome.fate, outcome.reason) == (Fate.WHOLE, "")
    assert outcome.ttft_s is not None


Change = Callable[[list[dict[str, Any]]], list[Any]]
CHANGES: dict[str, tuple[Fate, Change]] = {
    "nothing": (Fate.WHOLE, lambda events: [*events, "[DONE]"]),
    "a token twice": (Fate.WRONG, lambda events: [events[0], *events, "[DONE]"]),
    "a token lost": (Fate.WRONG, lambda events: [events[0], *events[2:], "[DONE]"]),
    "the last token lost": (Fate.WRONG, lambda events: [*events[:-2], events[-1] | {"choices": []}, "[DONE]"]),
    "no [DONE]": (Fate.WRONG, lambda events: events),
    "two [DONE]": (Fate.WRONG, lambda events: [*events, "[DONE]", "[DONE]"]),
    "an empty event of another stream": (
        Fate.GARBLED,
        lambda events: [*events, {"id": "2", "choices": []}, "[DONE]"],
    ),
    "another id": (Fate.WRONG, lambda events: [*events[:-1], events[-1] | {"id": "2"}, "[DONE]"]),
    "no event": (Fate.GARBLED, lambda events: [*events[:-1], [1], events[-1], "[DONE]"]),
    "an error event": (Fate.BROKEN, lambda events: [*events[:2], {"error": {"code": "upstream-broke"}}]),
    "a usage that nobody asked for": (
        Fate.WRONG,
        lambda events: [*events[:-1], events[-1] | {"usage": {"completion_tokens": 4}}, "[DONE]"],
    ),
}


@pytest.mark.parametrize(("fate", "change"), CHANGES.values(), ids=CHANGES.keys())
async def test_what_is_wrong_with_a_stream_is_seen(fate: Fate, change: Change) -> None:
    asked = ask(1, output_tokens=4)
    words = [f" {word}" for word in asked.text.split()]

    def event(at: int) -> dict[str, Any]:
        reason = "length" if at == len(words) - 1 else None
        return {"id": "1", "choices": [{"index": 0, "text": words[at], "finish_reason": reason}]}

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for each in change([event(at) for at in range(len(words))]):
            said = each if isinstance(each, str) else json.dumps(each)
            writer.write(chunk(f"data: {said}\n\n".encode()))
        writer.write(b"0\r\n\r\n")

    assert (await _answered(script, asked)).fate is fate


async def test_what_never_ends_is_stuck_and_what_is_cut_is_broken() -> None:
    """A stream of which only the head came, one that was cut after it, an error in full, and nobody at all."""
    asked = ask(1, output_tokens=4)
    hanging = asyncio.Event()

    async def hang(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        await hanging.wait()

    async def cut(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        writer.close()

    async def refuse(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(json_reply({"error": {}}, status=429))

    outcomes = [await _answered(script, asked, bound_s=0.3) for script in (hang, cut, refuse)]
    outcomes.append(await send(1, asked, "nobody", bound_s=1.0))
    assert [each.fate for each in outcomes] == [Fate.STUCK, Fate.BROKEN, Fate.REFUSED, Fate.BROKEN]
    row = tally("all", outcomes)
    assert (row.requests, row.whole, row.broken, row.stuck, row.refused) == (4, 0, 2, 1, {"429": 1})
    assert "1x429" in table([row])


async def test_prompts_differ_by_number_and_seed_and_are_the_same_again() -> None:
    texts = {ask(number, seed=seed).text for number in range(5) for seed in range(5)}
    assert len(texts) == 25
    assert ask(3, seed=2).body == ask(3, seed=2).body
    assert ask(3, chat=True).path == CHAT
    async with engine_sim(served_model_names=("tiny",)) as (server, _):
        asks = [ask(number, output_tokens=5, chat=number % 2 == 0) for number in range(6)]
        assert {each.fate for each in await at_rate(server.port, asks, 1000.0, bound_s=20.0)} == {Fate.WHOLE}


def test_settings_that_an_installation_does_not_know_are_left_out() -> None:
    here = Installation()
    asked = {"limits": {"maxRetries": 1, "maxMoons": 2}, "moons": {"many": True}, "policy": {"prefill": {"type": "x"}}}
    assert here.known(asked) == {"limits": {"maxRetries": 1}, "policy": {"prefill": {"type": "x"}}}


def test_every_experiment_says_in_a_line_what_it_is_about() -> None:
    assert names()
    for name in names():
        first = (module(name).__doc__ or "").splitlines()[0]
        assert 20 < len(first) <= 120
        assert callable(module(name).run)


async def _answered(script: Any, asked: Any, bound_s: float = 20.0) -> Outcome:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(scripted_engine(script))
        return await send(int(engine.address.rpartition(":")[2]), asked, "one", bound_s=bound_s)
