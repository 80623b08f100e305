"""engine-sim against the real `vllm serve`: what Ballast and its users read of either is the same."""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="function")]

Pairs = dict[str, tuple[httpx.AsyncClient, httpx.AsyncClient]]
PROMPT = list(range(300, 400))
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "return_token_ids": True}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 5,
    "temperature": 0,
    "return_token_ids": True,
}
SAMPLE = re.compile(r"(vllm:[a-z0-9_]+)(?:\{(.*)\})? ")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

# Not modelled: estimates of FLOPs and bytes are about a real GPU.
LEFT_OUT = ("vllm:estimated_",)
SHOWN_VALUES = ("reason", "finished_reason", "source", "sleep_state", "le")


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    """The data of a stream's events."""
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        return [line[6:] async for line in answer.aiter_lines() if line.startswith("data: ")]


def shape(value: object) -> object:
    """Keys and types, all the way down; lists by their first element."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


async def samples(client: httpx.AsyncClient) -> dict[str, set[tuple[tuple[str, str], ...]]]:
    """Series of /metrics by name: label names, and the values of those that Ballast or a dashboard selects by."""
    found: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for line in (await client.get("/metrics")).text.splitlines():
        match = SAMPLE.match(line)
        if match and not match[1].startswith(LEFT_OUT):
            labels = sorted(LABEL.findall(match[2] or ""))
            key = tuple((name, value if name in SHOWN_VALUES else "") for name, value in labels)
            found.setdefault(match[1], set()).add(key)
    return found


async def test_metrics_have_the_same_names_and_labels(pairs: Pairs) -> None:
    """Every series of vllm: is there on both, histograms with the same buckets, after a request each."""
    pages = {}
    for name, (_, decode) in pairs.items():
        assert (await decode.post("/v1/completions", json=BODY)).status_code == 200
        pages[name] = await samples(decode)
    real, sim = pages["vllm"], pages["engine-sim"]
    assert sorted(real) == sorted(sim)
    # Labels of cache_config_info name settings of the real cache; engine-sim has those that Ballast reads.
    (known,), (full,) = sim.pop("vllm:cache_config_info"), real.pop("vllm:cache_config_info")
    assert set(known) <= set(full)
    assert {name: real[name] for name in real if real[name] != sim[name]} == {
        name: sim[name] for name in sim if real[name] != sim[name]
    }


@pytest.mark.parametrize(
    "extra", [{}, {"return_token_ids": False}, {"stream_options": {"include_usage": True}}], ids=str
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_streams_have_the_same_chunks(pairs: Pairs, path: str, extra: dict[str, Any]) -> None:
    """The same kinds of events in the same order, with the same keys and types; every token id is there.

    vLLM's API server joins tokens into one event when it falls behind, so equal events in a row count as one.
    """
    told: dict[str, list[Any]] = {}
    for name, (_, decode) in pairs.items():
        body = {**(BODY if path == "/v1/completions" else CHAT), **extra}
        *chunks, done = await events(decode, path, body)
        assert done == "[DONE]"
        parsed = [json.loads(chunk) for chunk in chunks]
        ids = [ids for chunk in parsed for choice in chunk["choices"] for ids in choice.get("token_ids") or ()]
        assert len(ids) == (5 if body["return_token_ids"] else 0), name
        told[name] = [kind for kind, _ in groupby(shape(chunk) for chunk in parsed)]
    assert told["vllm"] == told["engine-sim"]


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)])
async def test_whole_answers_have_the_same_shape(pairs: Pairs, path: str, body: dict[str, Any]) -> None:
    """One JSON body."""
    shapes = {name: shape((await decode.post(path, json=body)).json()) for name, (_, decode) in pairs.items()}
    assert shapes["vllm"] == shapes["engine-sim"]


RESPONSE: dict[str, Any] = {"input": "Hello", "max_output_tokens": 5, "temperature": 0, "store": False}


async def test_responses_have_the_same_shape(pairs: Pairs) -> None:
    """The whole answer, and the events of the stream by name, keys and types."""
    whole, streamed = {}, {}
    for name, (_, decode) in pairs.items():
        whole[name] = shape((await decode.post("/v1/responses", json=RESPONSE)).json())
        parsed = [json.loads(event) for event in await events(decode, "/v1/responses", RESPONSE)]
        streamed[name] = [kind for kind, _ in groupby((event["type"], shape(event)) for event in parsed)]
    assert whole["vllm"] == whole["engine-sim"]
    assert streamed["vllm"] == streamed["engine-sim"]


async def test_a_hand_off_speaks_the_same_and_the_decode_side_continues(pairs: Pairs) -> None:
    """The handle has the same keys and types; the decode side pulls it and agrees with a single engine."""
    handles = {}
    for name, (prefill, decode) in pairs.items():
        prompt = list(range(500, 600))
        first = {**BODY, "prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        handle = (await prefill.post("/v1/completions", json=first)).json()["kv_transfer_params"]
        handles[name] = {key: shape(value) for key, value in handle.items()}
        assert handle["remote_num_tokens"] == 100, name
        assert len(handle["remote_block_ids"][0]) == 4, name
        second = {**BODY, "prompt": prompt, "kv_transfer_params": handle}
        handed = (await decode.post("/v1/completions", json=second)).json()["choices"][0]["token_ids"]
        alone = (await prefill.post("/v1/completions", json={**BODY, "prompt": prompt})).json()
        assert handed == alone["choices"][0]["token_ids"], name
        page = (await decode.get("/metrics")).text
        pulled = re.search(r'prompt_tokens_by_source_total\{.*source="external_kv_transfer"\} (\S+)', page)
        assert pulled is not None, name
        assert float(pulled[1]) >= 99, name
    assert handles["vllm"] == handles["engine-sim"]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},
        {"prompt": None},
        {"prompt": []},
        {"prompt": [10**15]},
        {"prompt": [-1]},
        {"prompt": list(range(300, 2348))},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 5000},
        {"max_tokens": "many"},
        {"min_tokens": 9, "max_tokens": 5},
        {"stream": "perhaps"},
        {"stream_options": {"include_usage": True}},
        {"n": 0},
        {"priority": "high"},
        {"kv_transfer_params": "x"},
        {"temperature": -1},
        {"top_p": 3},
    ],
    ids=json.dumps,
)
async def test_bad_bodies_get_the_same_status(pairs: Pairs, change: dict[str, Any]) -> None:
    """And an error in the same shape, with the status as its code."""
    answers = {}
    for name, (_, decode) in pairs.items():
        answer = await decode.post("/v1/completions", json={**BODY, **change})
        answers[name] = (answer.status_code, shape(answer.json()) if answer.status_code >= 400 else None)
    real, sim = answers["vllm"], answers["engine-sim"]
    assert real[0] == sim[0]
    if real[0] >= 400:
        assert isinstance(real[1], dict)
        assert isinstance(sim[1], dict)
        assert set(real[1]) == set(sim[1])


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("GET", "/health"), ("GET", "/nowhere")])
async def test_other_paths_answer_alike(pairs: Pairs, method: str, path: str) -> None:
    """Status, and the keys that Ballast reads."""
    answers = {}
    for name, (_, decode) in pairs.items():
        answers[name] = await decode.request(method, path)
    assert answers["vllm"].status_code == answers["engine-sim"].status_code
    if path == "/v1/models":
        real, sim = (answers[name].json()["data"][0] for name in ("vllm", "engine-sim"))
        assert set(sim) <= set(real)


async def test_not_json_gets_the_same_status(pairs: Pairs) -> None:
    """A body that is cut off."""
    statuses = set()
    for _, decode in pairs.values():
        headers = {"content-type": "application/json"}
        statuses.add((await decode.post("/v1/completions", content=b'{"prompt":', headers=headers)).status_code)
    assert len(statuses) == 1
