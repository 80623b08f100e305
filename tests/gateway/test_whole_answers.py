"""Whole answers that come as streams inside: the fields of an engine's own, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_gateway.http.client import UpstreamError
from ballast_gateway.proxy.bodies import Generation, read_generation
from ballast_gateway.proxy.fields import is_replayable
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.whole_answers import Spoiled, Unfit, WholeAnswer
from tests.gateway.test_moving_streams import Line, request
from tests.support.gateway_kit import assert_openai_error, post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import (
    SSE_HEAD,
    Asked,
    Script,
    chunk,
    completion,
    json_reply,
    scripted_engine,
    vllm_events,
)

pytestmark = pytest.mark.rotating(4, each=True)

COMPLETIONS, CHATS = PATHS = ("/v1/completions", "/v1/chat/completions")
BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 3}
Writer = asyncio.StreamWriter


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with Line(tmp_path) as made:
        yield made


async def ask(url: str, body: dict[str, Any], request_id: str = "one") -> dict[str, Any]:
    """A whole answer, but for when it was made."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(url, json=body, headers={"x-request-id": request_id})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    return dict(answer.json()) | {"created": 0}


def whole(path: str, number: int = 0, **more: Any) -> dict[str, Any]:
    return {**request(path, number), "stream": False, **more}


async def alone(line: Line, path: str, body: dict[str, Any], request_id: str = "one") -> dict[str, Any]:
    """What one engine answers."""
    return await ask(f"http://127.0.0.1:{line.engines['p0'].port}{path}", body, request_id)


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no word of streams": {"stream": None},
    "token ids": {"return_token_ids": True},
    "no token ids": {"return_token_ids": False},
    "own end": {"vllm_xargs": {"ballast_output_tokens": 60}},
    "one token": {"max_tokens": 1},
}


@pytest.mark.rotating(3)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("shuffle_s", [None, 0.05], ids=["still", "moving"])
async def test_it_has_the_fields_of_an_engines_own(
    line: Line, path: str, shape: dict[str, Any], shuffle_s: float | None
) -> None:
    """Field by field, at rest and moved all the time: text, ids, usage, the reason of its end, and what is null."""
    gateway = await line.start(slower=4, shuffle_s=shuffle_s)
    body = whole(path, **shape)
    assert await ask(f"{gateway.url}{path}", body) == await alone(line, path, body)
    entry = gateway.request()
    assert (entry["outcome"], entry["stream"], entry["status"]) == ("completed", False, 200)
    assert entry["ttft_s"] <= entry["e2e_s"]
    if shuffle_s is not None and "max_tokens" not in shape:
        assert entry["migrations"] >= 2
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def test_cached_tokens_are_named_as_an_engine_names_them(tmp_path: Path) -> None:
    """With `--enable-prompt-tokens-details`: with the fields of which a stream says nothing."""
    events = vllm_events(["a", "b", "c"], usage=True)
    cached = b'"prompt_tokens_details":{"cached_tokens":2},"completion_tokens":3'
    script = streams(*events[:3], events[3].replace(b'"completion_tokens":3', cached), events[4])
    async with scripted_engine(script) as engine, running_gateway(tmp_path, {"f0": engine.address}) as gateway:
        answer = await ask(f"{gateway.url}{COMPLETIONS}", BODY)
    details = {"cached_tokens": 2, "created_cache_tokens": None, "multimodal_tokens": None}
    assert answer["usage"]["prompt_tokens_details"] == details
    assert answer["usage"]["completion_tokens_details"] is None


@pytest.mark.rotating(4)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rescue", [True, False], ids=["rescued", "moves alone"])
async def test_an_engine_that_dies_takes_no_whole_answer_with_it(line: Line, path: str, rescue: bool) -> None:
    """Fourteen at once over two engines, one of which hangs up half way: each is the answer of one engine."""
    policy = {"rescheduling": {"type": "ares", "parameters": {"intervalS": 3600.0}}}
    more: dict[str, Any] = {} if rescue else {"streams": {"rescue": False}, "policy": policy}
    gateway = await line.start(shuffle_s=None, slower=8, **more)
    bodies = {f"r{number}": whole(path, number) for number in range(14)}
    url = f"{gateway.url}{path}"
    asking = [asyncio.create_task(ask(url, body, name)) for name, body in bodies.items()]
    ledger = gateway.gateway.driver.director.ledger
    await until(lambda: len(ledger) == 14 and sum(entry.generated_tokens for entry in ledger) > 14 * 20)
    while not all(task.done() for task in asking):
        line.kill("d0")  # again and again: some connections are still being accepted
        await asyncio.sleep(0.02)
    answers = [await task for task in asking]
    assert answers == await asyncio.gather(*(alone(line, path, body, name) for name, body in bodies.items()))
    entries = gateway.requests()
    assert {entry["outcome"] for entry in entries} == {"completed"}
    assert {entry["decode"] for entry in entries} == {"d1"}
    assert sum(entry.get("rescues", 0) for entry in entries) >= 3
    assert [entry["output_tokens"] for entry in sorted(entries, key=lambda entry: int(entry["request_id"][1:]))] == [
        body["max_tokens"] for body in bodies.values()
    ]
    await until(lambda: len(ledger) == 0)


async def test_with_no_engine_left_it_is_an_error_with_a_status(line: Line) -> None:
    """Never a cut connection: nothing has been sent."""
    gateway = await line.start(shuffle_s=None, slower=8)
    asking = asyncio.create_task(raw_exchange(gateway.port, post(COMPLETIONS, whole(COMPLETIONS)), answers=1))
    ledger = gateway.gateway.driver.director.ledger
    await until(lambda: sum(entry.generated_tokens for entry in ledger) > 20)
    while not asking.done():
        for name in line.engines:
            line.kill(name)
        await asyncio.sleep(0.02)
    (answer,) = await asking
    assert answer.whole
    assert answer.status == 502
    assert assert_openai_error(answer)["code"] == "upstream-broke"
    entry = gateway.request()
    assert (entry["status"], entry["outcome"], entry["reason"]) == (502, "failed", "upstream-broke")
    await until(lambda: len(ledger) == 0)


async def test_a_client_that_leaves_stops_its_engine(line: Line) -> None:
    gateway = await line.start(shuffle_s=0.02)
    body = whole(COMPLETIONS, max_tokens=50_000)
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(post(COMPLETIONS, body))
    ledger = gateway.gateway.driver.director.ledger
    await until(lambda: sum(entry.generated_tokens for entry in ledger) > 20)
    writer.transport.abort()
    await until(lambda: len(ledger) == 0)
    await until(lambda: not any(engine._answers for engine in line.engines.values()))
    entry = gateway.request()
    assert (entry["outcome"], entry["status"]) == ("cancelled", 0)


# --- engines whose every byte the test chooses ----------------------------------------------------------------------


def streams(*events: bytes, end: bytes = b"0\r\n\r\n") -> Script:
    """These events; then the answer ends, or the connection, without an `end`."""

    async def script(asked: Asked, writer: Writer) -> None:
        if not asked.body.get("stream"):
            writer.write(json_reply(completion("whole", 3)))
            return
        writer.write(SSE_HEAD + b"".join(map(chunk, events)) + end)
        if not end:
            await writer.drain()
            writer.close()

    return script


GOOD = vllm_events(["a", "b", "c"], usage=True)
NO_USAGE = vllm_events(["a", "b", "c"])
BAD: dict[str, tuple[bytes, ...]] = {
    "ids without an end": (GOOD[0], b'data: {"id":"cmpl-1","choices":[{"index":0,"text":"b","token_ids":[5'),
    "an event of ids without an end": (
        GOOD[0],
        b'data: {"id":"cmpl-1","choices":[{"index":0,"text":"b","token_ids":[5\n\n',
    ),
    "ids of text": (GOOD[0], GOOD[1].replace(b"[11]", b'["11"]')),
    "negative ids": (GOOD[0], GOOD[1].replace(b"[11]", b"[-11]")),
    "no ids": (GOOD[0], GOOD[1].replace(b"[11]", b"null")),
    "no JSON": (GOOD[0], GOOD[1].replace(b'"text"', b"text"), *GOOD[2:]),
    "a text that is none": (GOOD[0], GOOD[1].replace(b'"b"', b"7"), *GOOD[2:]),
    "other line ends": (GOOD[0], GOOD[1].replace(b"\n\n", b"\r\n\r\n"), *GOOD[2:]),
    "several lines": (GOOD[0], GOOD[1].replace(b'"choices"', b'\ndata: "choices"'), *GOOD[2:]),
    "skips": (GOOD[0], *GOOD[2:]),
    "repeats": (GOOD[0], GOOD[1], *GOOD[1:]),
    "tokens after the end": (*GOOD[:3], GOOD[1], *GOOD[3:]),
    "no reason": (*GOOD[:2], GOOD[4]),
    "an error event": (GOOD[0], b'data: {"error":{"message":"dead"}}\n\n', GOOD[4]),
    "an abort": (GOOD[0], GOOD[1].replace(b'"finish_reason":null', b'"finish_reason":"abort"'), GOOD[4]),
    "a reason in a wrong place": (*GOOD[:2], GOOD[1].replace(b'"index":0', b'"x":{"finish_reason":"stop"}')),
    "NaN": (GOOD[0], GOOD[1].replace(b'"stop_reason":null', b'"stop_reason":NaN'), *GOOD[2:]),
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n"], ids=["cut", "ended"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_garbage_is_made_good_elsewhere(tmp_path: Path, bad: tuple[bytes, ...], end: bytes) -> None:
    """Nothing of it reaches the client: it goes on from the tokens that are sure, or starts over."""

    async def good(asked: Asked, writer: Writer) -> None:
        prompt = asked.body["prompt"] if isinstance(asked.body["prompt"], list) else [1, 2, 3]
        assert asked.body["max_tokens"] == 6 - len(prompt)
        events = vllm_events([*"abc"][len(prompt) - 3 :], prompt=prompt, usage=True)
        writer.write(SSE_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n")

    async with scripted_engine(streams(*bad, end=end)) as first, scripted_engine(good) as second:
        addresses = {"f0": first.address, "f1": second.address}
        async with running_gateway(tmp_path, addresses) as gateway:
            answer = await ask(f"{gateway.url}{COMPLETIONS}", {**BODY, "return_token_ids": True})
            (choice,) = answer["choices"]
            assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("abc", "length", [10, 11, 12])
            assert answer["usage"]["completion_tokens"] == 3
            assert answer["usage"]["prompt_tokens"] == 3
            assert len(first.asked) == 1
            assert len(second.asked) == (bad is not BAD["tokens after the end"])
            assert gateway.request()["outcome"] == "completed"
            await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def test_an_engine_that_breaks_after_its_last_token_has_answered(tmp_path: Path) -> None:
    """Its usage is counted here."""
    script = streams(*NO_USAGE[:3], end=b"")
    async with scripted_engine(script) as engine, running_gateway(tmp_path, {"f0": engine.address}) as gateway:
        answer = await ask(f"{gateway.url}{COMPLETIONS}", BODY)
    assert answer["choices"][0]["text"] == "abc"
    counts = {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}
    assert answer["usage"] == {**counts, "prompt_tokens_details": None, "completion_tokens_details": None}


@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n"], ids=["no usage at the end", "whole"])
async def test_usages_on_the_way_are_no_fault(tmp_path: Path, end: bytes) -> None:
    """vLLM with `--enable-force-include-usage` puts one into each event, of what came so far."""
    front = (json.loads(event[6:]) for event in GOOD[:3])
    counts = ({"prompt_tokens": 3, "total_tokens": 3 + tokens, "completion_tokens": tokens} for tokens in (1, 2, 3))
    events = [
        b"data: %b\n\n" % json.dumps({**each, "usage": next(counts)}, separators=(",", ":")).encode() for each in front
    ]
    script = streams(*events, *(GOOD[3:] if end else ()), end=end)
    async with scripted_engine(script) as engine, running_gateway(tmp_path, {"f0": engine.address}) as gateway:
        answer = await ask(f"{gateway.url}{COMPLETIONS}", BODY)
        assert (len(engine.asked), gateway.request()["outcome"]) == (1, "completed")
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("abc", 3)


CHAT_EVENTS = [
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":'
    b'{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[1,2]}\n\n',
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":'
    b'{"reasoning":"Hm"},"finish_reason":null,"token_ids":[9]}]}\n\n',
]


@pytest.mark.parametrize(
    ("path", "events"),
    [
        (CHATS, CHAT_EVENTS),
        (CHATS, [b'data: {"id":"1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]},"token_ids":[4]}]}\n\n']),
        (COMPLETIONS, [b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n']),
    ],
    ids=["reasoning", "a tool at once", "no ids"],
)
async def test_what_a_stream_says_too_little_about_is_asked_for_as_it_came(
    tmp_path: Path, path: str, events: list[bytes]
) -> None:
    """Byte for byte, at the same engine; the next ones at once."""

    async def script(asked: Asked, writer: Writer) -> None:
        if asked.body.get("stream"):
            writer.write(SSE_HEAD + b"".join(map(chunk, events)))
            await asyncio.Event().wait()
        writer.write(json_reply(completion("all of it", 5)))

    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, fault: faults.append(fault))
    body = {"model": "tiny", "max_tokens": 5}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if path == CHATS else {"prompt": "abc"}
    async with scripted_engine(script) as engine, running_gateway(tmp_path, {"f0": engine.address}) as gateway:
        for _ in range(3):
            (answer,) = await raw_exchange(gateway.port, post(path, body), answers=1)
            assert answer.json() == completion("all of it", 5)
        first, *later = engine.asked
        assert first.body["stream"] is True
        assert [asked.raw for asked in later] == [json.dumps(body).encode()] * 3
        entries = gateway.requests()
        assert [(entry["outcome"], entry.get("retries"), entry["output_tokens"]) for entry in entries] == [
            ("completed", None, 5)
        ] * 3
    assert not faults


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_refusal_is_the_engines_own(tmp_path: Path, status: int) -> None:
    async def refuses(asked: Asked, writer: Writer) -> None:
        writer.write(json_reply({"error": {"message": "too long"}}, status))

    async with scripted_engine(refuses) as engine, running_gateway(tmp_path, {"f0": engine.address}) as gateway:
        (answer,) = await raw_exchange(gateway.port, post(COMPLETIONS, BODY), answers=1)
    assert (answer.status, answer.json()) == (status, {"error": {"message": "too long"}})


async def test_requests_on_one_connection_are_answered_in_turn(line: Line) -> None:
    """Whole answers, a stream between them, and an error."""
    gateway = await line.start(shuffle_s=None)
    bodies = [
        whole(COMPLETIONS),
        request(COMPLETIONS, 1),
        whole(COMPLETIONS, 2),
        {"model": "none"},
        whole(COMPLETIONS, 3),
    ]
    answers = await raw_exchange(gateway.port, *[post(COMPLETIONS, body) for body in bodies], answers=5)
    assert [answer.status for answer in answers] == [200, 200, 200, 400, 200]
    assert [answers[at].json()["usage"]["completion_tokens"] for at in (0, 2, 4)] == [80, 82, 83]


# --- alone ----------------------------------------------------------------------------------------------------------


class Connection:
    """Of the client, which the answer is for."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def respond(self, status: int, headers: object, body: bytes) -> None:
        self.bodies.append(json.loads(body))


def putting_together(**more: Any) -> tuple[HeldStream, WholeAnswer, Connection]:
    asked: Generation = read_generation(json.dumps({**BODY, **more}).encode(), chat=False)
    assert is_replayable(asked)
    held, connection = HeldStream(asked.as_stream(), unseen=True), Connection()
    answer = WholeAnswer(connection, asked, held)  # type: ignore[arg-type]
    answer.start_stream(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
    return held, answer, connection


def test_a_long_answer_holds_its_text_and_little_else() -> None:
    """Not its events, which are twenty times as long."""
    held, answer, connection = putting_together()
    first, event, *_ = vllm_events(["x", " word", "y"])
    answer.write(held.feed(first))
    for _ in range(20_000):
        answer.write(held.feed(event))
        assert sum(map(len, answer._parts)) <= 16 * 1024
    assert sum(map(len, answer._text)) + sum(map(len, answer._parts)) < 20_000 * 5 + 20 * 1024
    answer.write(held.feed(event.replace(b'"finish_reason":null', b'"finish_reason":"stop"')))
    answer.end()
    assert connection.bodies[0]["choices"][0]["text"] == "x" + " word" * 20_001


def test_text_is_what_the_engine_wrote_down_to_its_escapes() -> None:
    """Line ends, quotes, other scripts, and a surrogate that is alone."""
    texts = ['"\n\t\\', "ü🙂", "\ud83d", '"token_ids":[7]', "\x00"]
    held, answer, connection = putting_together()
    for event in vllm_events(texts):
        answer.write(held.feed(event))
    answer.end()
    assert connection.bodies[0]["choices"][0]["text"] == "".join(texts)


def test_what_was_spoiled_stays_so_until_all_starts_over() -> None:
    held, answer, connection = putting_together()
    answer.write(held.feed(GOOD[0]))
    with pytest.raises(Spoiled):
        answer.write(held.feed(GOOD[1].replace(b'"text"', b"text")) + held.feed(GOOD[2]))
    with pytest.raises(UpstreamError):
        answer.write(GOOD[1])
    held.start_over()
    answer.start_over()
    for event in GOOD:
        answer.write(held.feed(event))
    answer.end()
    assert connection.bodies[0]["choices"][0]["text"] == "abc"


def test_models_whose_streams_are_unfit_are_remembered_for_a_while() -> None:
    asked = read_generation(json.dumps(BODY).encode(), chat=False)
    unfit = Unfit()
    assert not unfit.holds(asked, 0.0)
    unfit.note(asked, 100.0)
    assert unfit.holds(asked, 159.0)
    assert not unfit.holds(asked, 161.0)


def test_a_stream_is_asked_for_beside_what_the_client_wrote() -> None:
    """The last of two equal keys counts, for vLLM too."""
    body = {**BODY, "stream": False, "stream_options": None}
    asked = read_generation(json.dumps(body).encode(), chat=False)
    inside = asked.as_stream()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert json.loads(inside.raw) == inside.document == {**BODY, **options}
    assert json.loads(HeldStream(inside).first_body(inside.raw)) == {**BODY, **options, "return_token_ids": True}
    assert asked.raw == json.dumps(body).encode()
