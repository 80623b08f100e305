"""The same requests to an engine and through the gateway: one answer, but for what the docs name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.engine_sim import tiny_engine
from tests.support.gateway_kit import running_gateway

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
FLEETS = {"colocated": ("f0", "f1"), "disaggregated": ("p0", "d0")}
_ROLES = {"p": "kv_producer", "d": "kv_consumer", "f": "kv_both"}
_VARIES = ("id", "created", "created_at", "item_id")
_REFUSALS = (400, 404)

OPTIONS = (
    *("--served-model-name", "tiny", "tiny-alias", "--max-model-len", "512"),
    *("--enable-lora", "--lora-modules", "ada=/ada"),
)


class Asked(NamedTuple):
    path: str
    body: dict[str, Any]


Maker = Callable[[random.Random], Any]


def either(good: Sequence[Any], bad: Sequence[Any] = ()) -> Maker:
    """One of the `good`, seldom one of the `bad`."""
    return lambda draw: draw.choice(bad if bad and draw.random() < _SLIPS else good)


def _content(draw: random.Random) -> Any:
    if draw.random() < 0.7:
        return _TEXT(draw)
    return [_PART(draw) for _ in range(draw.randint(1, 2))]


def _messages(draw: random.Random) -> Any:
    if draw.random() < _SLIPS:
        return draw.choice([[], None, "hi", {}, [None], ["hi"], [{"content": "x"}], [{"role": ""}], [{"role": 3}]])
    roles = draw.choices(["user", "system", "assistant", "tool"], k=draw.randint(1, 3))
    return [{"role": role, "content": _content(draw)} for role in roles]


_SLIPS = 0.06
_TEXT = either(["a", "hello there, who is this?", "\u00e4\u4f60\u597d \U0001f600", "x y " * 200, "\n\n"])
_PART = either(
    [{"type": "text", "text": "hi"}, {"type": "text", "text": ""}],
    [{"type": "text"}, {"type": "image_url", "image_url": {"url": "data:,"}}, "text", None],
)
_PROMPT = either(
    [
        "a",
        "hello there, who is this?",
        "\u00e4\u4f60 \U0001f600",
        [5, 6, 7],
        list(range(300, 400)),
        ["a"],
        [[1, 2]],
        [0],
    ],
    ["", [], None, 3, {}, [[]], [None], [1, "a"], [-1], [2**60], [1.5], [True], ["a", "b"], list(range(600))],
)
FIELDS: dict[str, Maker] = {
    "max_tokens": either([1, 2, 7, 40, None], [0, -1, 2.5, 600, 10**12, "many"]),
    "max_completion_tokens": either([1, 3, None], [0, 1000, "many"]),
    "min_tokens": either([0, 1, None], [50, -1]),
    "stream_options": either(
        [
            *(None, {}, {"include_usage": True}, {"include_usage": False}, {"include_usage": None}),
            *({"include_usage": True, "continuous_usage_stats": True}, {"continuous_usage_stats": True}),
        ],
        [[], "x"],
    ),
    "temperature": either([0, 0.5, 1, None], [-1, "hot", 1e400]),
    "top_p": either([1, 0.5, None], [0, 1.5]),
    "top_k": either([-1, 0, 5, None]),
    "seed": either([0, 7, None]),
    "stop": either(["x", ["x", "y"], [], "", None]),
    "n": either([1, None], [0, 2, -1]),
    "echo": either([False, None], [True]),
    "logprobs": either([None], [1]),
    "return_token_ids": either([True, False, None]),
    "ignore_eos": either([True, False, None]),
    "presence_penalty": either([0, 0.5, None]),
    "user": either(["me", None]),
    "tools": either([None, []], [[{"type": "function", "function": {"name": "f", "parameters": {}}}]]),
    "response_format": either([{"type": "text"}, None], [{"type": "json_object"}]),
    "vllm_xargs": either(
        [{"ballast_output_tokens": 3}, {"ballast_output_tokens": 1}, {"a": 1}, {}, None], [{"ballast_output_tokens": 0}]
    ),
    "add_generation_prompt": either([True, False, None]),
    "suffix": either(["", None], ["b"]),
    "unknown": either([1, "x", None, {}]),
    "model": either(["tiny", "tiny-alias", "ada", None, ""], ["nobody"]),
    "request_id": either(["mine", None]),
    "priority": either([0, 3, None]),
    "kv_transfer_params": either([None, {}]),
}


OTHERS: dict[str, dict[str, Maker]] = {
    "/v1/responses": {
        "input": either(
            [
                "a",
                "hello there",
                [{"role": "user", "content": "hi"}],
                [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            ],
            ["", [], None, 3, [{"type": "reasoning"}]],
        ),
        "max_output_tokens": either([1, 5], [0, -1, 600]),
        "instructions": either(["Be short.", None, ""]),
        "stream": either([True, False, None]),
        "store": either([False, None]),
        "temperature": either([0, 1, None], ["hot", -1]),
        "metadata": either([{"a": "b"}, None]),
        "model": either(["tiny", "ada", None], ["nobody"]),
    },
    "/v1/embeddings": {
        "input": either(["a", ["a", "b"], [1, 2], [[1, 2], [3]]], ["", [], None, 3, [[]], [1, "a"]]),
        "encoding_format": either(["float", "base64", None], ["hex"]),
        "dimensions": either([None], [5]),
        "model": either(["tiny", "tiny-alias", None], ["nobody"]),
        "user": either(["me", None]),
    },
    "/tokenize": {
        "prompt": either(["a", "hello there \u00e4"], [3, []]),
        "model": either(["tiny", None], ["nobody"]),
        "return_token_strs": either([True, False, None]),
        "add_special_tokens": either([True, None]),
    },
    "/detokenize": {
        "tokens": either([[1, 2], [], [5]], ["a", None, [-1], ["a"]]),
        "model": either(["tiny", None], ["nobody"]),
    },
}


def a_generation(draw: random.Random) -> Asked:
    chat = draw.random() < 0.5
    prompt = {"messages": _messages(draw)} if chat else {"prompt": _PROMPT(draw)}
    body: dict[str, Any] = {"model": "tiny", **prompt, "stream": draw.choice([True, False, None]), "max_tokens": 5}
    if draw.random() < _SLIPS:
        del body[draw.choice(sorted(body))]
    for field in draw.sample(sorted(FIELDS), draw.choice([0, 1, 2, 3, 5])):
        body[field] = FIELDS[field](draw)
    return Asked(CHATS if chat else COMPLETIONS, body)


def another(draw: random.Random) -> Asked:
    path = draw.choice(sorted(OTHERS))
    fields = OTHERS[path]
    chosen = [*list(fields)[:2], *draw.sample(sorted(fields), draw.randint(0, len(fields) - 1))]
    return Asked(path, {name: fields[name](draw) for name in chosen})


def same(document: Any) -> Any:
    """Without what differs from one request to the next."""
    if isinstance(document, dict):
        return {key: same(value) for key, value in document.items() if key not in _VARIES}
    return [same(each) for each in document] if isinstance(document, list) else document


def event(text: str) -> tuple[str, Any]:
    head, begin, data = text.partition("data: {")
    return head, same(json.loads("{" + data)) if begin else ""


async def ask(client: httpx.AsyncClient, url: str, asked: Asked) -> tuple[int, Any]:
    """The status, and the answer, if it is none of an error: engines and the gateway have their own words."""
    raw = json.dumps(asked.body).replace("Infinity", "1e400")
    answer = await client.post(url + asked.path, content=raw, headers={"content-type": "application/json"})
    if answer.status_code != 200:
        assert isinstance(answer.json()["error"]["message"], str)
        return answer.status_code, None
    kind = answer.headers["content-type"].partition(";")[0]
    if kind == "text/event-stream":
        return 200, [event(each) for each in answer.text.split("\n\n")]
    return 200, (kind, same(answer.json()))


@pytest.mark.rotating(2, each=True)
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("draws", [a_generation, another])
async def test_clients_get_what_the_engine_alone_would_give(
    tmp_path: Path, fleet: str, draws: Callable[[random.Random], Asked]
) -> None:
    """Whole or as a stream, good or a little wrong, whether one engine computes it or two."""
    draw = random.Random(fleet)
    async with AsyncExitStack() as stack:
        alone = await stack.enter_async_context(tiny_engine(_ROLES["f"], *OPTIONS))
        engines = {
            name: await stack.enter_async_context(tiny_engine(_ROLES[name[0]], *OPTIONS)) for name in FLEETS[fleet]
        }
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in engines.items()}
        gateway = await stack.enter_async_context(running_gateway(tmp_path, addresses, adapters={"names": ["ada"]}))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60, trust_env=False))
        statuses = set()
        for _ in range(150):
            asked = draws(draw)
            expected, found = [await ask(client, url, asked) for url in (f"http://127.0.0.1:{alone.port}", gateway.url)]
            refused = (expected[0] in _REFUSALS) and (found[0] in _REFUSALS)  # of two faults either may come first
            assert found == expected or refused, asked
            statuses.add(expected[0])
    assert statuses >= {200, 400}
