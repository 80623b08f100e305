"""Prompts that two engines compute: one the first part, the next one the rest and the answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.directing.partitioner import Partitioner
from ballast_core.model import EndpointId, RequestId
from ballast_core.model.effects import Dispatch, Leave
from ballast_gateway.proxy import cutting
from ballast_gateway.proxy.bodies import ASK_FOR_HANDLE, Generation, read_generation
from ballast_gateway.proxy.cutting import LEAST_PART_TOKENS, Cutter, handle_of, part_tokens, remainder_body
from ballast_gateway.proxy.fields import is_divisible
from ballast_gateway.proxy.legs import Job
from ballast_sim.engine_sim.server import EngineSimServer
from tests.support.cuts import CUTTING, cut_at
from tests.support.engine_sim import metric, tiny_engine
from tests.support.gateway_kit import RunningGateway, post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import (
    HANDLE,
    Asked,
    Script,
    ScriptedEngine,
    completion,
    decode_script,
    json_reply,
    scripted_engine,
    sse_events,
)
from tests.support.shuffle import shuffle

IDS = list(range(1000, 1400))
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "The ships lie still and the harbour is dark. " * 40
CREATED = re.compile(rb'"created":\d+')
Writer = asyncio.StreamWriter


# --- what may be cut ------------------------------------------------------------------------------------------------


def generation(path: str, body: dict[str, Any]) -> Generation:
    return read_generation(json.dumps({"model": "tiny", "stream": True, **body}).encode(), chat=path == CHAT)


USER = {"role": "user", "content": "hello"}
DIVISIBLE: list[tuple[str, dict[str, Any]]] = [
    (COMPLETION, {"prompt": [1, 2, 3]}),
    (COMPLETION, {"prompt": "hello", "add_special_tokens": False, "seed": 3, "stop": ["x"], "logprobs": 2}),
    (COMPLETION, {"prompt": "hello", "n": 1, "echo": False, "suffix": "", "presence_penalty": 0.4, "user": None}),
    (CHAT, {"messages": [USER], "max_completion_tokens": 5, "temperature": 0.5}),
    (CHAT, {"messages": [{**USER, "name": "a", "content": [{"type": "text", "text": "b"}]}], "tools": []}),
    (CHAT, {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}, "structured_outputs": {}}),
]
WHOLE: list[tuple[str, dict[str, Any]]] = [
    (COMPLETION, {"prompt": [1, 2], "stream": False}),
    (COMPLETION, {"prompt": ["a", "b"]}),
    (COMPLETION, {"prompt": ["a"]}),
    (COMPLETION, {"prompt": [[1, 2]]}),
    (COMPLETION, {"prompt": [1, 2], "n": 2}),
    (COMPLETION, {"prompt": [1, 2], "best_of": 2}),
    (COMPLETION, {"prompt": "a", "echo": True}),
    (COMPLETION, {"prompt": "a", "prompt_logprobs": 1}),
    (COMPLETION, {"prompt": "a", "truncate_prompt_tokens": 1}),
    (COMPLETION, {"prompt": "a", "suffix": "b"}),
    (COMPLETION, {"prompt_embeds": "AAAA"}),
    (COMPLETION, {"prompt": "a", "some_day": 1}),
    (CHAT, {"messages": [USER], "tools": [{"type": "function"}]}),
    (CHAT, {"messages": [USER], "documents": [{"text": "a"}]}),
    (CHAT, {"messages": [USER], "reasoning_effort": "low"}),
    (CHAT, {"messages": [USER], "response_format": {"type": "json_object"}}),
    (CHAT, {"messages": [{**USER, "tool_calls": []}]}),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": None, "reasoning_content": "so"}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}),
]


@pytest.mark.parametrize(("path", "body"), DIVISIBLE, ids=str)
def test_prompts_whose_tokens_can_be_known_may_be_cut(path: str, body: dict[str, Any]) -> None:
    assert is_divisible(generation(path, body))


@pytest.mark.parametrize(("path", "body"), WHOLE, ids=str)
def test_prompts_with_unknown_tokens_stay_whole(path: str, body: dict[str, Any]) -> None:
    assert not is_divisible(generation(path, body))


# --- where it is cut ------------------------------------------------------------------------------------------------


def test_a_cut_keeps_its_share_of_the_prompt() -> None:
    """The example of the docstring, exact ids, and what would be too small."""
    assert part_tokens(600, 1000, 800) == 480
    assert part_tokens(333, 1000, 1000) == 333
    assert part_tokens(1000, 1000, 1000) == 999
    assert part_tokens(1000, 1000, 64) is None
    assert part_tokens(64, 1000, 1000) == 64
    assert part_tokens(63, 1000, 1000) is None


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000))
def test_a_part_is_pulled_whole_and_leaves_a_token(end: int, planned: int, actual: int) -> None:
    """Whatever the estimate was: vLLM dies of a part that is longer than the prompt."""
    tokens = part_tokens(min(end, planned), planned, actual)
    assert tokens is None or LEAST_PART_TOKENS <= tokens < actual


GOOD = {**HANDLE, "remote_num_tokens": 200, "transfer_mode": "pull", "tp_size": 1}


def reply(handle: object) -> bytes:
    return json.dumps(completion("a", kv_transfer_params=handle)).encode()


def test_a_handle_becomes_one_for_a_part() -> None:
    """All that the engine gave, and who reads."""
    assert handle_of(reply(GOOD), 200) == {**GOOD, "do_remote_prefill": False, "do_remote_decode": True}


BAD_HANDLES: list[object] = [
    None,
    [],
    {},
    {**GOOD, "remote_num_tokens": 199},
    {**GOOD, "remote_num_tokens": 201},
    {**GOOD, "remote_num_tokens": "200"},
    {**GOOD, "remote_num_tokens": None},
    {**GOOD, "remote_block_ids": []},
    {**GOOD, "remote_block_ids": [[]]},
    {**GOOD, "remote_block_ids": [1, 2]},
    {**GOOD, "remote_block_ids": [[1], [None]]},
    {**GOOD, "remote_engine_id": ""},
    {**GOOD, "remote_request_id": None},
    {**GOOD, "remote_host": 7},
    {**GOOD, "remote_port": "x"},
    {**GOOD, "transfer_mode": "push"},
    {key: value for key, value in GOOD.items() if key != "remote_host"},
]


@pytest.mark.parametrize("handle", BAD_HANDLES, ids=str)
def test_a_handle_for_other_tokens_is_not_used(handle: object) -> None:
    """vLLM does not check it: it would crash, or answer wrongly."""
    assert handle_of(reply(handle), 200) is None


@pytest.mark.parametrize("raw", [b"", b"junk", b"[]", b"{}", b"null", b"[" * 100_000])
def test_an_answer_that_is_none_has_no_handle(raw: bytes) -> None:
    assert handle_of(raw, 200) is None


def test_the_next_engine_is_given_the_ids_themselves() -> None:
    """Whatever the client wrote: then the KV is that of its prompt."""
    handle = {"do_remote_decode": True}
    ids = generation(COMPLETION, {"prompt": [5, 6]})
    assert json.loads(remainder_body(ids, [5, 6], handle)) == {**ids.document, "kv_transfer_params": handle}
    text = generation(COMPLETION, {"prompt": "a b", "stop": "c"})
    told = json.loads(remainder_body(text, [5, 6], handle))
    assert told == {**text.document, "prompt": [5, 6], "kv_transfer_params": handle}
    chat = generation(CHAT, {"messages": [USER]})
    told = json.loads(remainder_body(chat, [5, 6], handle))
    assert told == {**chat.document, "kv_transfer_params": {**handle, "prompt_token_ids": [5, 6]}}


# --- between engines that speak as vLLM does ------------------------------------------------------------------------


class Pair(AsyncExitStack):
    """Two flexible engines, each able to go on from a part that the other one has."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__()
        self._tmp_path = tmp_path
        self.engines: dict[str, EngineSimServer] = {}
        self.clients: dict[str, httpx.AsyncClient] = {}

    async def start(
        self, ratio: float = 0.5, *, reads_parts: bool = True, slower: float = 1, **settings: Any
    ) -> RunningGateway:
        for name in ("f0", "f1"):
            engine = tiny_engine("kv_both", "--time-scale", str(slower), bidirectional_kv_xfer=reads_parts)
            self.engines[name] = await self.enter_async_context(engine)
            client = httpx.AsyncClient(base_url=self.url(name), timeout=60, trust_env=False)
            self.clients[name] = await self.enter_async_context(client)
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in self.engines.items()}
        gateway = await self.enter_async_context(
            running_gateway(self._tmp_path, addresses, **{"policy": CUTTING, **settings})
        )
        cut_at(gateway, ratio)
        return gateway

    def kill(self, name: str) -> None:
        """The engine closes every connection and listens no more."""
        engine = self.engines[name]
        for listener in engine._listeners:
            listener.close()
        for connection in list(engine._connections):
            connection.abort()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.engines[name].port}"

    async def pulled(self, name: str) -> float:
        samples = {"source": "external_kv_transfer"}
        return await metric(self.clients[name], "vllm:prompt_tokens_by_source_total", **samples)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as made:
        yield made


async def stream(
    url: str, body: dict[str, Any], request_id: str = "r", on_bytes: Callable[[bytes], object] = len
) -> bytes:
    """The bytes of a whole stream, but for when it began."""
    got = b""
    async with (
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
        client.stream("POST", url, json=body, headers={"x-request-id": request_id}) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        async for data in answer.aiter_bytes():
            got += data
            on_bytes(got)
    return CREATED.sub(b'"created":0', got)


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ids": (COMPLETION, {"prompt": IDS}),
    "ids, with usage": (COMPLETION, {"prompt": IDS, "stream_options": {"include_usage": True}}),
    "ids, to be shown": (COMPLETION, {"prompt": IDS, "return_token_ids": True}),
    "text": (COMPLETION, {"prompt": TEXT}),
    "a chat": (CHAT, {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]}),
    "a chat with a seed": (CHAT, {"messages": [{"role": "user", "content": TEXT}], "seed": 7, "temperature": 1.0}),
    "a chat, ids to be shown": (CHAT, {"messages": [{"role": "user", "content": TEXT}], "return_token_ids": True}),
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("ratio", [0.3, 1.0])
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("rescue", [True, False])
async def test_a_cut_prompt_is_answered_as_by_one_engine(pair: Pair, name: str, ratio: float, rescue: bool) -> None:
    """Byte for byte; the second engine pulled the first part and computed the rest; nothing stays behind."""
    path, more = REQUESTS[name]
    gateway = await pair.start(ratio, streams={"rescue": rescue})
    body = {"model": "tiny", "stream": True, "max_tokens": 20, **more}
    through = await stream(f"{gateway.url}{path}", body)
    entry = gateway.request()
    cut = entry["cut_tokens"]
    assert await pair.pulled("f1") == cut >= LEAST_PART_TOKENS
    assert await stream(f"{pair.url('f0')}{path}", body) == through
    assert (entry["outcome"], entry["prefill"], entry["decode"]) == ("completed", "f0", "f1")
    assert entry["output_tokens"] == 20
    assert 0 < entry["prefill_s"] <= entry["ttft_s"]
    if more.get("prompt") is IDS:
        assert cut == min(int(ratio * len(IDS)), len(IDS) - 1)
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


@pytest.mark.rotating(3)
async def test_many_at_once_in_both_directions(pair: Pair) -> None:
    """Each engine takes first parts of some and the rest of others."""
    gateway = await pair.start()
    cut_at(gateway, 0.4).by_turns = True
    bodies = [
        {"model": "tiny", "stream": True, "max_tokens": 10 + number, "prompt": [at + number for at in IDS]}
        for number in range(24)
    ]
    through = await asyncio.gather(
        *(stream(f"{gateway.url}{COMPLETION}", body, f"r{at}") for at, body in enumerate(bodies))
    )
    entries = gateway.requests()
    assert {entry["prefill"] for entry in entries} == {"f0", "f1"}
    assert sum(entry["cut_tokens"] for entry in entries) == await pair.pulled("f0") + await pair.pulled("f1")
    alone = await asyncio.gather(
        *(stream(f"{pair.url('f0')}{COMPLETION}", body, f"r{at}") for at, body in enumerate(bodies))
    )
    assert through == alone


@pytest.mark.rotating(3)
async def test_libra_cuts_prompts_by_itself(pair: Pair) -> None:
    """The shipped policy; only equal completion times count as balanced."""
    even = {"partition": {"type": "libra", "parameters": {"cuts": "prompt", "epsS": 0, "ttftSloS": 0}}}
    gateway = await pair.start(policy=even)
    partitioner = gateway.gateway.driver.director.partitioner
    policy = gateway.gateway.settings.policy.build().partition
    assert isinstance(partitioner, Partitioner)
    assert policy is not None
    partitioner.planner = policy.planner()
    bodies = [{"model": "tiny", "stream": True, "max_tokens": 30, "prompt": [number, *IDS * 5]} for number in range(12)]
    through = await asyncio.gather(
        *(stream(f"{gateway.url}{COMPLETION}", body, f"r{at}") for at, body in enumerate(bodies))
    )
    entries = gateway.requests()
    assert any(entry.get("cut_tokens") for entry in entries)
    alone = await asyncio.gather(
        *(stream(f"{pair.url('f0')}{COMPLETION}", body, f"r{at}") for at, body in enumerate(bodies))
    )
    assert through == alone


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": IDS, "stream": False, "stop": ["never said"]},
        {"prompt": [IDS]},
        {"prompt": IDS[:90]},
        {"prompt": "short"},
    ],
    ids=["a whole answer that cannot be a stream inside", "a list of prompts", "too short to pull a half", "text"],
)
async def test_what_cannot_be_cut_runs_whole(pair: Pair, more: dict[str, Any]) -> None:
    """On one engine, nothing is pulled, and the books are right."""
    gateway = await pair.start()
    body = {"model": "tiny", "max_tokens": 5, "stream": True, **more}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"{gateway.url}{COMPLETION}", json=body)
    assert answer.status_code == 200
    entry = gateway.request()
    assert (entry["outcome"], entry.get("prefill"), entry.get("cut_tokens")) == ("completed", None, None)
    assert await pair.pulled("f0") == await pair.pulled("f1") == 0
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def test_an_engine_that_reads_no_parts_is_left_when_its_time_is_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vLLM without `bidirectional_kv_xfer`: it waits for ever. The other engine answers, whole."""
    monkeypatch.setattr(cutting, "FIRST_TOKEN_DUE_S", 0.5)
    gateway = await pair.start(reads_parts=False)
    body = {"model": "tiny", "stream": True, "max_tokens": 5, "prompt": IDS}
    through = await stream(f"{gateway.url}{COMPLETION}", body)
    assert through == await stream(f"{pair.url('f0')}{COMPLETION}", body)
    entry = gateway.request()
    assert (entry["outcome"], entry["decode"], entry["retries"]) == ("completed", "f0", 1)
    assert "cut_tokens" not in entry

    async with asyncio.timeout(10):
        while await metric(pair.clients["f1"], "vllm:num_requests_waiting"):  # noqa: ASYNC110 - only the page says it
            await asyncio.sleep(0.02)


@pytest.mark.rotating(3)
@pytest.mark.parametrize("name", ["ids", "text", "a chat"])
async def test_a_stream_whose_second_engine_dies_goes_on_without_the_handle(pair: Pair, name: str) -> None:
    """As any other stream: by its tokens, on the engine that is left, which pulls nothing."""
    path, more = REQUESTS[name]
    gateway = await pair.start(slower=3)
    body = {"model": "tiny", "stream": True, "max_tokens": 60, **more}

    def watch(got: bytes) -> None:
        if got.count(b"data: ") > 20:
            pair.kill("f1")

    through = await stream(f"{gateway.url}{path}", body, on_bytes=watch)
    assert through == await stream(f"{pair.url('f0')}{path}", body)
    entry = gateway.request()
    assert (entry["outcome"], entry["decode"], entry["rescues"]) == ("completed", "f0", 1)
    assert await pair.pulled("f0") == 0
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


@pytest.mark.rotating(3)
async def test_what_was_cut_may_move_later(pair: Pair) -> None:
    """A partition and a rescheduling in one policy: cut first, then to and fro, byte for byte."""
    gateway = await pair.start(policy={**CUTTING, "rescheduling": {"type": "ares"}}, slower=3)
    shuffle(gateway, 0.05)
    body = {"model": "tiny", "stream": True, "max_tokens": 80, "prompt": IDS}
    through = await stream(f"{gateway.url}{COMPLETION}", body)
    assert through == await stream(f"{pair.url('f0')}{COMPLETION}", body)
    entry = gateway.request()
    assert entry["cut_tokens"] == 200
    assert entry["migrations"] >= 1
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


# --- when something fails -------------------------------------------------------------------------------------------


class Fleet(AsyncExitStack):
    """Engines whose every byte the test chooses, by name, and a gateway that cuts in the middle."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__()
        self._tmp_path = tmp_path
        self.engines: dict[str, ScriptedEngine] = {}

    async def serve(self, *, rescue: bool = False, ratio: float = 0.5, **scripts: Script) -> RunningGateway:
        for name, script in scripts.items():
            self.engines[name] = await self.enter_async_context(scripted_engine(script))
        addresses = {name: engine.address for name, engine in self.engines.items()}
        settings: dict[str, Any] = {"policy": CUTTING, "streams": {"rescue": rescue}}
        gateway = await self.enter_async_context(running_gateway(self._tmp_path, addresses, **settings))
        cut_at(gateway, ratio)
        return gateway

    def asked(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        return [(each.path, each.body) for each in self.engines[name].asked]


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path) as made:
        yield made


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
BODY = {"model": "tiny", "prompt": IDS, "max_tokens": 3, **STREAMED}
SAID = b"".join(sse_events(["a", "b", "c"]))


def is_first_part(asked: Asked) -> bool:
    return bool(asked.body.get("kv_transfer_params") == ASK_FOR_HANDLE)


def engine(first: Script | None = None, then: Script = decode_script) -> Script:
    """Answers a first part as it should, or by `first`, and all else by `then`."""

    async def script(asked: Asked, writer: Writer) -> None:
        if asked.path == COMPLETION and is_first_part(asked):
            if first is not None:
                await first(asked, writer)
            else:
                handle = {**GOOD, "remote_num_tokens": len(asked.body["prompt"])}
                writer.write(json_reply(completion("a", kv_transfer_params=handle)))
        else:
            await then(asked, writer)

    return script


def answers(status: int, body: object = None) -> Script:
    async def script(asked: Asked, writer: Writer) -> None:
        writer.write(json_reply(body or {"error": {"message": "no", "code": status}}, status))

    return script


async def hang_up(asked: Asked, writer: Writer) -> None:
    writer.transport.abort()


async def never(asked: Asked, writer: Writer) -> None:
    await asyncio.Event().wait()


async def drained(gateway: RunningGateway) -> None:
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def ask(gateway: RunningGateway, body: dict[str, Any], path: str = COMPLETION) -> tuple[int, bytes]:
    (answer,) = await raw_exchange(gateway.port, post(path, body), answers=1)
    return answer.status, answer.body


async def test_what_each_engine_is_asked(fleet: Fleet) -> None:
    """The first half of the ids for one token; then the client's own request and where that KV lies."""
    gateway = await fleet.serve(f0=engine(), f1=engine())
    body = {**BODY, "temperature": 0.7, "cache_salt": "s", "stop": "x", "kv_transfer_params": {"remote_host": "evil"}}
    assert await ask(gateway, body) == (200, SAID)
    ((path, first),) = fleet.asked("f0")
    assert path == COMPLETION
    assert first.pop("kv_transfer_params") == ASK_FOR_HANDLE
    assert first == {
        "model": "tiny",
        "prompt": IDS[:200],
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
        "cache_salt": "s",
    }
    ((path, second),) = fleet.asked("f1")
    assert path == COMPLETION
    assert second == {
        **{key: value for key, value in body.items() if key != "kv_transfer_params"},
        "kv_transfer_params": {**GOOD, "do_remote_prefill": False, "do_remote_decode": True},
    }
    await drained(gateway)


@pytest.mark.parametrize("first", [answers(500), answers(503), hang_up], ids=["500", "503", "hangs up"])
async def test_a_first_part_that_fails_is_done_elsewhere(fleet: Fleet, first: Script) -> None:
    """With one engine left the request is whole."""
    gateway = await fleet.serve(f0=engine(first), f1=engine())
    assert await ask(gateway, BODY) == (200, SAID)
    assert fleet.asked("f1") == [(COMPLETION, BODY)]
    entry = gateway.request()
    assert (entry["retries"], entry["decode"]) == (1, "f1")
    await drained(gateway)


@pytest.mark.parametrize(
    "first",
    [
        answers(400),
        answers(404),
        answers(200, ["odd"]),
        answers(200, completion("a")),
        answers(200, completion("a", kv_transfer_params={**GOOD, "remote_num_tokens": 199})),
        answers(200, completion("a", kv_transfer_params={**GOOD, "remote_block_ids": "x"})),
    ],
    ids=["400", "404", "odd", "no handle", "a handle for other tokens", "a handle without blocks"],
)
async def test_without_a_good_handle_the_next_engine_computes_all(fleet: Fleet, first: Script) -> None:
    """Byte for byte what the client sent; that engine reports what is wrong with it."""
    gateway = await fleet.serve(f0=engine(first), f1=engine())
    assert await ask(gateway, BODY) == (200, SAID)
    assert [each.raw for each in fleet.engines["f1"].asked] == [json.dumps(BODY).encode()]
    entry = gateway.request()
    assert ("cut_tokens" in entry, entry.get("retries")) == (False, None)
    await drained(gateway)


@pytest.mark.parametrize("then", [answers(500), hang_up], ids=["500", "hangs up"])
@pytest.mark.parametrize("rescue", [True, False])
async def test_a_handle_is_used_once(fleet: Fleet, then: Script, rescue: bool) -> None:
    """The rest fails before its first byte: the engine that is left computes all of it."""
    gateway = await fleet.serve(rescue=rescue, f0=engine(), f1=engine(then=then))
    assert (await ask(gateway, BODY))[0] == 200
    (_, (path, again)) = fleet.asked("f0")
    assert path == COMPLETION
    assert "kv_transfer_params" not in again
    await drained(gateway)


async def test_a_stream_that_breaks_midway_ends_as_any_other(fleet: Fleet) -> None:
    """Its engine gives no token ids, so no engine can go on; the handle is not used again."""

    async def half(asked: Asked, writer: Writer) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        event = sse_events(["a"])[0]
        writer.write(head + b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    gateway = await fleet.serve(f0=engine(), f1=engine(then=half))
    status, body = await ask(gateway, BODY)
    assert (status, body.startswith(b"data: "), b"[DONE]" in body) == (200, True, False)
    assert len(fleet.asked("f0")) == len(fleet.asked("f1")) == 1
    assert gateway.requests()[0]["outcome"] == "failed"
    await drained(gateway)


@pytest.mark.parametrize("slow", ["f0", "f1"])
async def test_an_engine_stops_when_the_client_leaves(fleet: Fleet, slow: str) -> None:
    """In either part."""
    gateway = await fleet.serve(f0=engine(first=never if slow == "f0" else None), f1=engine(then=never))
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(post(COMPLETION, BODY))
    await until(lambda: fleet.engines[slow].asked)
    writer.close()
    await asyncio.wait_for(fleet.engines[slow].hung_up.wait(), 10)
    assert reader is not None
    await drained(gateway)
    assert gateway.requests()[0]["outcome"] == "cancelled"


# --- text whose tokens an engine names ------------------------------------------------------------------------------


async def test_a_part_that_takes_the_place_of_one_that_was_left_ends_with_its_request(fleet: Fleet) -> None:
    """Its engine is left with it, and whatever comes of it answers no other request on the client's connection."""
    gateway = await fleet.serve(f0=engine(never), f1=engine(never), f2=engine())
    driver = gateway.gateway.driver
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(post(COMPLETION, BODY, "x-request-id: r", "x-envoy-expected-rq-timeout-ms: 1000"))
    await until(lambda: fleet.asked("f0"))
    ticket = driver.ticket(RequestId("r"))
    assert ticket is not None
    assert ticket.leaver is not None
    ticket.leaver(Leave(RequestId("r"), EndpointId("f0"), "it is silent"))
    await until(lambda: fleet.asked("f1"))
    assert await reader.readline() == b"HTTP/1.1 504 Gateway Timeout\r\n"
    await until(fleet.engines["f1"].hung_up.is_set)
    writer.close()
    await drained(gateway)


@pytest.mark.parametrize("ends", ["client_gone", "shut_down"])
async def test_a_part_that_ends_in_the_turn_in_which_it_is_left_counts_no_more(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The end of its task is told after the end of the request."""
    gateway = await fleet.serve(f0=engine(), f1=engine())
    driver, faults = gateway.gateway.driver, []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))

    async def first_part(self: Cutter, job: Job, dispatch: Dispatch, planned_tokens: int) -> None:
        ticket = driver.ticket(RequestId("r"))
        run = getattr(None if ticket is None else ticket.leaver, "__self__", None)
        loop.call_soon(getattr(run, ends))

    monkeypatch.setattr(Cutter, "first_part", first_part)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(post(COMPLETION, BODY, "x-request-id: r"))
    await drained(gateway)
    await until(lambda: not driver.in_flight(RequestId("r")))
    await asyncio.sleep(0)
    assert not faults
    assert ends == "client_gone" or (await reader.readline()).startswith(b"HTTP/1.1 503")
    writer.close()


def names_tokens(ids: object, chat_ids: object = None, status: int = 200) -> Script:
    """`/tokenize` returns these ids; a chat of one token has those."""

    async def script(asked: Asked, writer: Writer) -> None:
        if asked.path == "/tokenize":
            writer.write(json_reply({"count": 1, "tokens": ids}, status))
        elif asked.path == CHAT and not asked.body.get("stream"):
            writer.write(json_reply({"choices": [], "prompt_token_ids": chat_ids}))
        else:
            await decode_script(asked, writer)

    return engine(then=script)


TEXT_BODY = {"model": "tiny", "prompt": "words " * 200, "max_tokens": 3, **STREAMED}
CHAT_BODY = {"model": "tiny", "messages": [{"role": "user", "content": "words " * 200}], **STREAMED}


async def test_text_is_cut_at_the_planned_share_of_its_tokens(fleet: Fleet) -> None:
    """1,200 characters pass for 300 tokens; they are 400, so the half is 200."""
    gateway = await fleet.serve(f0=names_tokens(IDS), f1=engine())
    assert await ask(gateway, {**TEXT_BODY, "add_special_tokens": False}) == (200, SAID)
    (tokenize, first) = fleet.asked("f0")
    assert tokenize == ("/tokenize", {"model": "tiny", "prompt": TEXT_BODY["prompt"], "add_special_tokens": False})
    assert first[1]["prompt"] == IDS[:200]
    ((_, second),) = fleet.asked("f1")
    assert second["prompt"] == IDS
    assert gateway.requests()[0]["cut_tokens"] == 200


@pytest.mark.parametrize(
    ("ids", "status"),
    [(None, 200), ([], 200), (["a"], 200), ([1, -2], 200), ([True] * 300, 200), ({}, 200), (IDS, 400), (IDS, 404)],
)
async def test_an_answer_without_tokens_cuts_nothing(fleet: Fleet, ids: object, status: int) -> None:
    """The next engine answers what the client sent, byte for byte."""
    gateway = await fleet.serve(f0=names_tokens(ids, status=status), f1=engine())
    assert await ask(gateway, TEXT_BODY) == (200, SAID)
    assert [path for path, _ in fleet.asked("f0")] == ["/tokenize"]
    assert [each.raw for each in fleet.engines["f1"].asked] == [json.dumps(TEXT_BODY).encode()]
    await drained(gateway)


async def test_chats_are_cut_where_tokenize_is_known_to_render_them(fleet: Fleet) -> None:
    """An engine is asked for proof once."""
    gateway = await fleet.serve(f0=names_tokens(IDS, IDS), f1=engine())
    for _ in range(2):
        assert await ask(gateway, CHAT_BODY, CHAT) == (200, SAID)
    paths = [path for path, _ in fleet.asked("f0")]
    assert paths == [CHAT, "/tokenize", "/tokenize", COMPLETION, "/tokenize", COMPLETION]
    for path, body in fleet.asked("f1"):
        assert path == CHAT
        assert body["messages"] == CHAT_BODY["messages"]
        assert body["kv_transfer_params"]["prompt_token_ids"] == IDS


async def test_a_proof_holds_for_one_model(fleet: Fleet) -> None:
    """Of two that an engine serves, each may have its own template."""
    gateway = await fleet.serve(f0=names_tokens(IDS, IDS), f1=engine())
    for model in ("tiny", "tiny-alias", "tiny"):
        assert await ask(gateway, {**CHAT_BODY, "model": model}, CHAT) == (200, SAID)
    assert [body["model"] for path, body in fleet.asked("f0") if path == CHAT] == ["tiny", "tiny-alias"]


class Restarts:
    """An engine whose chats have other tokens than `/tokenize` returns, from its next start on; it may fail first."""

    def __init__(self) -> None:
        self.before, self.after = names_tokens(IDS, IDS), names_tokens(IDS, IDS[1:])
        self.restarted = self.fails = False

    async def __call__(self, asked: Asked, writer: Writer) -> None:
        if self.fails:
            self.fails = False
            await answers(503)(asked, writer)
            return
        await (self.after if self.restarted else self.before)(asked, writer)


async def test_an_engine_is_asked_for_proof_again_after_a_while(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been replaced at its address between two requests."""
    monkeypatch.setattr(cutting, "PROOF_HOLDS_S", 0.0)
    gateway = await fleet.serve(f0=(first := Restarts()), f1=engine())
    assert await ask(gateway, CHAT_BODY, CHAT) == (200, SAID)
    first.restarted = True
    assert await ask(gateway, CHAT_BODY, CHAT) == (200, SAID)
    assert [entry.get("cut_tokens") for entry in gateway.requests()] == [200, None]
    assert fleet.asked("f1")[1] == (CHAT, CHAT_BODY)


async def test_an_engine_that_has_failed_is_asked_for_proof_again(fleet: Fleet) -> None:
    """What answers next at its address may be another one."""
    gateway = await fleet.serve(f0=(first := Restarts()), f1=engine())
    assert await ask(gateway, CHAT_BODY, CHAT) == (200, SAID)
    first.fails = first.restarted = True
    for _ in range(2):
        assert await ask(gateway, CHAT_BODY, CHAT) == (200, SAID)
    assert [entry.get("cut_tokens") for entry in gateway.requests()] == [200, None, None]
    assert gateway.requests()[1]["retries"] == 1
    assert fleet.asked("f1")[1:] == [(CHAT, CHAT_BODY)] * 2


@pytest.mark.parametrize("chat_ids", [IDS[1:], None, "x"])
async def test_chats_of_a_model_with_a_renderer_of_its_own_are_not_cut(fleet: Fleet, chat_ids: object) -> None:
    """gpt-oss: `/tokenize` returns other tokens than a chat's prompt has."""
    gateway = await fleet.serve(f0=names_tokens(IDS, chat_ids), f1=engine())
    for _ in range(2):
        assert await ask(gateway, CHAT_BODY, CHAT) == (200, SAID)
    assert COMPLETION not in [path for path, _ in fleet.asked("f0")]
    assert [body for _, body in fleet.asked("f1")] == [CHAT_BODY, CHAT_BODY]


async def test_an_engine_that_fails_to_name_tokens_is_left(fleet: Fleet) -> None:
    """As one whose prefill fails."""
    gateway = await fleet.serve(f0=names_tokens(IDS, status=500), f1=engine())
    assert await ask(gateway, TEXT_BODY) == (200, SAID)
    assert gateway.requests()[0]["retries"] == 1
    assert fleet.asked("f1") == [(COMPLETION, TEXT_BODY)]
