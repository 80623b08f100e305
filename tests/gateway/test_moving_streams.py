"""Running streams are moved between engines, or saved when one dies; clients see the bytes of a stream unmoved."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_core.model import EndpointId
from ballast_gateway.proxy import moving
from ballast_sim.engine_sim.server import EngineSimServer
from tests.support.engine_sim import tiny_engine
from tests.support.gateway_kit import RunningGateway, running_gateway, until
from tests.support.scripted_engine import SSE_HEAD, Asked, Script, chunk, json_reply, scripted_engine
from tests.support.shuffle import shuffle

pytestmark = pytest.mark.rotating(4, each=True)

ROLES = {"p": "kv_producer", "d": "kv_consumer"}
PROMPT = list(range(1000, 1200))
TOKENS = 80
HALF = b'data: {"id":"one","object":'
CREATED = re.compile(rb'"created":\d+')


class Line(AsyncExitStack):
    """One prefill and two decode engines, and a gateway that moves what it can, or one that moves nothing."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__()
        self._tmp_path = tmp_path
        self.engines: dict[str, EngineSimServer] = {}

    async def start(
        self, *names: str, shuffle_s: float | None = 0.05, slower: float = 1, joins: int = 1, **settings: Any
    ) -> RunningGateway:
        """`joins`: tokens in an event."""
        for name in names or ("p0", "d0", "d1"):
            slow = ("--time-scale", str(slower)) if name.startswith("d") else ()
            how = (*slow, "--stream-interval", str(joins))
            self.engines[name] = await self.enter_async_context(tiny_engine(ROLES[name[0]], *how))
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in self.engines.items()}
        if shuffle_s is not None:
            settings["policy"] = {"rescheduling": {"type": "ares"}, **settings.get("policy", {})}
        gateway = await self.enter_async_context(running_gateway(self._tmp_path, addresses, **settings))
        if shuffle_s is not None:
            shuffle(gateway, shuffle_s)
        return gateway

    async def unmoved(self, path: str, body: dict[str, Any], request_id: str) -> bytes:
        """What one engine alone answers."""
        engine = next(engine for name, engine in self.engines.items() if name.startswith("p"))
        return await stream(f"http://127.0.0.1:{engine.port}{path}", body, request_id)

    def kill(self, name: str) -> None:
        """The engine closes every connection and listens no more."""
        engine = self.engines[name]
        for listener in engine._listeners:
            listener.close()
        for connection in list(engine._connections):
            connection.abort()


async def stream(url: str, body: dict[str, Any], request_id: str, on_bytes: Callable[[bytes], object] = len) -> bytes:
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


def request(path: str, number: int = 0, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "tiny", "stream": True, "max_tokens": TOKENS + number, **more}
    if "chat" in path:
        return {**body, "messages": [{"role": "user", "content": f"Tell me number {number}. " * 20}]}
    return {**body, "prompt": [number, *PROMPT]}


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with Line(tmp_path) as made:
        yield made


PATHS = ("/v1/completions", "/v1/chat/completions")
USAGE = {"include_usage": True}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "usage": {"stream_options": USAGE},
    "usage in every event": {"stream_options": USAGE | {"continuous_usage_stats": True}},
    "token ids": {"return_token_ids": True},
    "least tokens": {"min_tokens": 70},
    "own end": {"vllm_xargs": {"ballast_output_tokens": 60}},
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
async def test_a_stream_that_moves_all_the_time_is_the_stream_of_one_engine(
    line: Line, path: str, shape: dict[str, Any]
) -> None:
    """Byte by byte: every event, the usage, the reason of its end. Slow decodes leave time to move on any machine."""
    gateway = await line.start(slower=4)
    body = request(path, **shape)
    moved = await stream(f"{gateway.url}{path}", body, "one")
    assert moved == await line.unmoved(path, body, "one")
    entry = gateway.request()
    assert entry["migrations"] >= 2
    assert entry["outcome"] == "completed"
    assert entry["output_tokens"] == (60 if "vllm_xargs" in shape else TOKENS)
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("path", PATHS)
async def test_under_load_every_stream_is_whole_however_often_it_moves(line: Line, path: str) -> None:
    """Twenty streams at once over three decode engines that take their time."""
    gateway = await line.start("p0", "d0", "d1", "d2", slower=4)
    bodies = {f"r{number}": request(path, number) for number in range(20)}
    url = f"{gateway.url}{path}"
    names = list(bodies)
    moved = await asyncio.gather(*(stream(url, bodies[name], name) for name in names))
    alone = await asyncio.gather(*(line.unmoved(path, bodies[name], name) for name in names))
    assert dict(zip(names, moved, strict=True)) == dict(zip(names, alone, strict=True))
    entries = gateway.requests()
    assert sum(entry.get("migrations", 0) for entry in entries) > 20
    assert {entry["outcome"] for entry in entries} == {"completed"}
    page = gateway.gateway.registry.get_sample_value("ballast_gateway_migrations_total", {"outcome": "moved"})
    assert page == sum(entry.get("migrations", 0) for entry in entries)
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
    assert gateway.gateway.driver.director.ledger.decoding_tokens.sum() == 0


@pytest.mark.rotating(4)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shuffle_s", [None, 0.05], ids=["still", "moving"])
async def test_a_decode_engine_that_dies_takes_no_stream_with_it(
    line: Line, path: str, shuffle_s: float | None
) -> None:
    """Fourteen streams over two engines, one of which hangs up in the middle: each goes on at the other one."""
    gateway = await line.start(shuffle_s=shuffle_s, slower=4)
    bodies = {f"r{number}": request(path, number, stream_options=USAGE) for number in range(14)}
    url = f"{gateway.url}{path}"
    dead = False

    def watch(got: bytes) -> None:
        nonlocal dead
        dead = dead or got.count(b"data: ") > 30
        if dead:
            line.kill("d0")  # again and again: some connections are still being accepted

    moved = await asyncio.gather(*(stream(url, body, name, watch) for name, body in bodies.items()))
    alone = await asyncio.gather(*(line.unmoved(path, body, name) for name, body in bodies.items()))
    assert moved == list(alone)
    entries = gateway.requests()
    assert {entry["outcome"] for entry in entries} == {"completed"}
    assert {entry["decode"] for entry in entries} == {"d1"}
    if shuffle_s is None:
        assert sum(entry.get("rescues", 0) for entry in entries) >= 3
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


@pytest.mark.parametrize("path", PATHS)
async def test_streams_of_several_tokens_an_event_survive_their_engine(line: Line, path: str) -> None:
    """As with `--stream-interval` or speculative decoding: another engine is asked which tokens the text so far has."""
    gateway = await line.start(shuffle_s=None, slower=5, joins=3)
    bodies = [request(path, number, stream_options=USAGE) for number in range(8)]
    alone = [await line.unmoved(path, body, f"r-{number}") for number, body in enumerate(bodies)]
    begun = 0

    def count(got: bytes) -> None:
        nonlocal begun
        begun += got.count(b"data: {") == 6

    running = [
        asyncio.create_task(stream(f"{gateway.url}{path}", body, f"r-{number}", count))
        for number, body in enumerate(bodies)
    ]
    await until(lambda: begun >= 8)
    line.kill("d0")
    for got, expected in zip(await asyncio.gather(*running), alone, strict=True):
        assert (said(got), usage_of(got)) == (said(expected), usage_of(expected))
    assert sum(entry.get("rescues", 0) for entry in gateway.requests()) >= 3


def documents(got: bytes) -> list[dict[str, Any]]:
    return [json.loads(part[6:]) for part in got.split(b"\n\n") if part.startswith(b"data: {")]


def said(got: bytes) -> str:
    choices = [choice for document in documents(got) for choice in document["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def usage_of(got: bytes) -> object:
    return documents(got)[-1]["usage"]["completion_tokens"]


async def test_a_client_that_leaves_while_it_is_moved_leaves_nothing_behind(line: Line) -> None:
    """Neither in the ledger nor on any engine."""
    gateway = await line.start(shuffle_s=0.02)
    body = request(PATHS[0], max_tokens=50_000)

    async def leave_after(events: int) -> None:
        count = 0
        async with (
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
            client.stream("POST", f"{gateway.url}{PATHS[0]}", json=body) as answer,
        ):
            async for _ in answer.aiter_bytes():
                count += 1
                if count >= events:
                    return

    await asyncio.gather(*(leave_after(5 + 3 * number) for number in range(12)))
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
    await until(lambda: not any(engine._answers for engine in line.engines.values()))
    assert {entry["outcome"] for entry in gateway.requests()} == {"cancelled"}


async def test_what_cannot_be_replayed_stays(line: Line) -> None:
    """A seed with a temperature: as if there were no rescheduling."""
    gateway = await line.start()
    body = request(PATHS[0], seed=5, temperature=0.8)
    assert await stream(f"{gateway.url}{PATHS[0]}", body, "one") == await line.unmoved(PATHS[0], body, "one")
    assert "migrations" not in gateway.requests()[0]


async def test_the_director_and_the_engines_agree_where_a_request_is(line: Line) -> None:
    """While it moves to and fro it runs on one engine, and in the end the ledger has it on that one."""
    gateway = await line.start()
    director = gateway.gateway.driver.director
    places: set[EndpointId] = set()

    def look(_: bytes) -> None:
        for entry in director.ledger:
            if entry.decode_slot is not None:
                places.add(director.inventory.endpoint(entry.decode_slot).id)

    await stream(f"{gateway.url}{PATHS[0]}", request(PATHS[0]), "one", look)
    assert places == {"d0", "d1"}
    moves = [each for each in gateway.gateway.decisions.last(1000, request_id="one") if each["decision"] == "migrate"]
    assert len(moves) >= gateway.requests()[0]["migrations"] >= 2
    assert {each["source"] for each in moves} == {"d0", "d1"}
    assert json.loads(json.dumps(moves[0]))["round"]["policy"] == "shuffle"


def intercept(line: Line, name: str, breaks: Callable[[dict[str, Any]], str]) -> None:
    """Let an engine hang up on requests, or fall silent: `breaks` says "break", "hang", "head", "half" or nothing.

    "hang": no answer; "head": status and headers alone; "half": a piece of an event too.
    """
    routes = line.engines[name]._routes
    for path in PATHS:
        serve = routes["POST", path]

        def handle(asked: Any, exchange: Any, serve: Any = serve) -> None:
            match breaks(json.loads(asked.body)):
                case "break":
                    exchange.start_stream()
                    exchange.break_off()
                case "head":
                    exchange.start_stream()
                case "half":
                    exchange.start_stream()
                    exchange.write_framed(b"%x\r\n%b\r\n" % (len(HALF), HALF))
                case "":
                    serve(asked, exchange)

        routes["POST", path] = handle


def outcomes(gateway: RunningGateway) -> dict[str, float]:
    value = gateway.gateway.registry.get_sample_value
    return {
        outcome: value("ballast_gateway_migrations_total", {"outcome": outcome}) or 0.0
        for outcome in ("moved", "failed", "ended")
    }


@pytest.mark.rotating(2)
@pytest.mark.parametrize("path", PATHS)
async def test_a_target_that_fails_in_its_warm_up_costs_nothing(line: Line, path: str) -> None:
    """The stream stays, and each order is reported as failed."""
    gateway = await line.start(slower=2)
    for name in ("d0", "d1"):
        intercept(line, name, lambda body: "" if body.get("stream") else "break")
    assert await stream(f"{gateway.url}{path}", request(path), "one") == await line.unmoved(path, request(path), "one")
    found = outcomes(gateway)
    assert found["moved"] == 0
    assert found["failed"] >= 2
    assert "rescues" not in gateway.requests()[0]


@pytest.mark.rotating(2)
@pytest.mark.parametrize("path", PATHS)
async def test_a_target_that_fails_after_the_cut_sends_the_stream_back(line: Line, path: str) -> None:
    """Its source has the tokens in its cache; the client sees nothing of it."""
    gateway = await line.start(slower=2)
    home = ""

    def only_at_home(name: str) -> Callable[[dict[str, Any]], str]:
        def breaks(body: dict[str, Any]) -> str:
            nonlocal home
            if body.get("stream") and body["max_tokens"] == TOKENS:
                home = name
            return "break" if body.get("stream") and name != home else ""

        return breaks

    for name in ("d0", "d1"):
        intercept(line, name, only_at_home(name))
    assert await stream(f"{gateway.url}{path}", request(path), "one") == await line.unmoved(path, request(path), "one")
    found = outcomes(gateway)
    assert found["moved"] == 0
    assert found["failed"] >= 2
    entry = gateway.request()
    assert (entry["outcome"], entry["decode"]) == ("completed", home)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("silence", ["hang", "head", "half"])
async def test_a_target_that_falls_silent_after_the_cut_does_not_keep_the_client(
    line: Line, monkeypatch: pytest.MonkeyPatch, path: str, silence: str
) -> None:
    """As one with a queue: the stream is back at its source long before a leg's own limits, which are of minutes."""
    monkeypatch.setattr("ballast_gateway.proxy.orders.TARGET_DUE_S", 0.05)
    gateway = await line.start(slower=2)
    home = ""

    def silent_abroad(name: str) -> Callable[[dict[str, Any]], str]:
        def breaks(body: dict[str, Any]) -> str:
            nonlocal home
            if body.get("stream") and body["max_tokens"] == TOKENS:
                home = name
            return silence if body.get("stream") and name != home else ""

        return breaks

    for name in ("d0", "d1"):
        intercept(line, name, silent_abroad(name))
    assert await stream(f"{gateway.url}{path}", request(path), "one") == await line.unmoved(path, request(path), "one")
    found = outcomes(gateway)
    assert found["moved"] == 0
    assert found["failed"] >= 2
    entry = gateway.request()
    assert (entry["outcome"], entry["decode"]) == ("completed", home)
    assert "rescues" not in entry
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def test_a_warm_up_without_an_end_is_given_up(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream stays, and others may move again."""
    monkeypatch.setattr(moving, "WARM_UP_DUE_S", 0.05)
    gateway = await line.start(slower=2)
    for name in ("d0", "d1"):
        intercept(line, name, lambda body: "" if body.get("stream") else "hang")
    path = PATHS[0]
    assert await stream(f"{gateway.url}{path}", request(path), "one") == await line.unmoved(path, request(path), "one")
    found = outcomes(gateway)
    assert (found["moved"], found["failed"] >= 2) == (0, True)


async def test_a_request_may_end_before_its_move(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """A warm-up without an end is given up with the request. Slow decodes leave time for the order on any machine.

    They leave time for orders before the first token, too, which are refused; no other one fails.
    """
    caplog.set_level("INFO")
    gateway = await line.start(slower=4)
    for name in ("d0", "d1"):
        intercept(line, name, lambda body: "" if body.get("stream") else "hang")
    path = PATHS[0]
    assert await stream(f"{gateway.url}{path}", request(path), "one") == await line.unmoved(path, request(path), "one")
    found = outcomes(gateway)
    assert (found["moved"], found["ended"]) == (0, 1)
    failed = [vars(record)["problem"] for record in caplog.records if record.getMessage() == "a move failed"]
    assert len(failed) == found["failed"]
    assert all(problem.startswith("ordered while opening") for problem in failed), failed
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def test_a_client_that_cannot_keep_up_loses_nothing_by_moves(line: Line) -> None:
    """Its connection is paused and resumed all the while, in the midst of cuts too."""
    gateway = await line.start()
    path, face = PATHS[0], gateway.gateway.proxy
    assert face is not None

    async def hiccups() -> None:
        while True:
            for connection in list(face.connections):
                connection.pause_writing()
            await asyncio.sleep(0.03)
            for connection in list(face.connections):
                connection.resume_writing()
            await asyncio.sleep(0.02)

    pauses = asyncio.create_task(hiccups())
    try:
        moved = await stream(f"{gateway.url}{path}", request(path), "one")
    finally:
        pauses.cancel()
    assert moved == await line.unmoved(path, request(path), "one")
    assert outcomes(gateway)["moved"] >= 2


def orders(gateway: RunningGateway) -> int:
    """How often the Director ordered a move of the request; each order follows the end of the one before."""
    made = gateway.gateway.decisions.last(1000, request_id="one")
    return sum(each["decision"] == "migrate" for each in made)


def reads_nothing(gateway: RunningGateway) -> None:
    """The clients that are there stop reading, so that their engines are not read either."""
    assert gateway.gateway.proxy is not None
    for connection in list(gateway.gateway.proxy.connections):
        connection.pause_writing()


def reads_again(gateway: RunningGateway) -> None:
    assert gateway.gateway.proxy is not None
    for connection in list(gateway.gateway.proxy.connections):
        connection.resume_writing()


async def test_a_move_does_not_wait_for_a_client_that_stopped_reading(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event comes at which it could be cut: it is given up, again and again, and the stream is whole in the end."""
    monkeypatch.setattr(moving, "PATIENCE_S", 0.05)
    gateway = await line.start(slower=4)
    path, begun = PATHS[0], asyncio.Event()
    asking = asyncio.create_task(stream(f"{gateway.url}{path}", request(path), "one", lambda _: begun.set()))
    await begun.wait()
    reads_nothing(gateway)
    before = orders(gateway)
    await until(lambda: orders(gateway) >= before + 3)
    reads_again(gateway)
    assert await asking == await line.unmoved(path, request(path), "one")
    assert outcomes(gateway)["failed"] >= 2


async def test_nothing_waits_for_a_move_of_a_client_that_has_left(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its target was warm, and no event came any more."""
    monkeypatch.setattr(moving, "PATIENCE_S", 3600.0)
    gateway = await line.start(slower=4)
    path, begun = PATHS[0], asyncio.Event()

    def waiting() -> list[float]:
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        far_s = asyncio.get_running_loop().time() + 1800
        return [timer.when() for timer in scheduled if timer.when() > far_s and not timer.cancelled()]

    assert not waiting()
    asking = asyncio.create_task(stream(f"{gateway.url}{path}", request(path), "one", lambda _: begun.set()))
    await begun.wait()
    reads_nothing(gateway)
    await until(waiting)
    asking.cancel()
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
    assert not waiting()


@asynccontextmanager
async def moved_about(tmp_path: Path, script: Script) -> AsyncIterator[RunningGateway]:
    """A gateway that moves what it can between two engines of this script."""
    async with AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(scripted_engine(script)) for name in ("f0", "f1")}
        addresses = {name: engine.address for name, engine in engines.items()}
        policy = {"rescheduling": {"type": "ares"}}
        gateway = await stack.enter_async_context(running_gateway(tmp_path, addresses, policy=policy))
        shuffle(gateway, 0.05)
        yield gateway


def chat_event(delta: dict[str, Any], *ids: int, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **({"token_ids": ids} if ids else {})}
    event = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice], **more}
    return chunk(b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode())


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "warming up"])
async def test_a_move_of_a_request_that_begins_to_reason_is_given_up_at_once(tmp_path: Path, warm: bool) -> None:
    """It can no longer go on elsewhere: its reservation on the target ends long before the request."""
    moves, may_end = asyncio.Event(), asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not asked.body["stream"]:
            moves.set()
            if warm:
                writer.write(json_reply({"prompt_token_ids": [1, 2, 3, 100]}))
            else:
                await may_end.wait()
            return
        writer.write(SSE_HEAD + chat_event({"role": "assistant", "content": ""}, prompt_token_ids=[1, 2, 3]))
        writer.write(chat_event({}, 100))
        await moves.wait()
        writer.write(chat_event({"reasoning_content": "Hm"}, 101))
        await may_end.wait()
        writer.write(chat_event({"content": "So"}, 102) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with moved_about(tmp_path, script) as gateway:
        path = PATHS[1]
        asking = asyncio.create_task(stream(f"{gateway.url}{path}", request(path), "one"))
        await until(lambda: orders(gateway) >= 2)
        may_end.set()
        assert b"Hm" in await asking
        assert outcomes(gateway)["moved"] == 0


CODE = ("if", " i", " <", " n", " then", " stop")


def parsed(tokens: Sequence[str]) -> Iterator[dict[str, str]]:
    """What a vLLM shows of a chat where `--tool-call-parser qwen3_xml` reads along: a `<` is held back at first."""
    kept = ""
    for token in tokens:
        text = kept + token
        kept = "<" if text.endswith("<") else ""
        shown = text.removesuffix(kept)
        yield {"content": shown} if shown else {}


async def test_no_chat_is_cut_where_a_parser_holds_text_back(tmp_path: Path) -> None:
    """It would be lost: the next engine shows what comes after its prompt."""
    warm = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        given = (asked.body.get("kv_transfer_params") or {}).get("prompt_token_ids", [1, 2, 3])
        if not asked.body["stream"]:
            writer.write(json_reply({"prompt_token_ids": given}))
            warm.set()
            return
        done = len(given) - 3
        writer.write(SSE_HEAD + chat_event({"role": "assistant", "content": ""}, prompt_token_ids=given))
        for number, delta in enumerate(parsed(CODE[done:]), done):
            writer.write(chat_event(delta, 100 + number))
            if number and not done:
                await warm.wait()
                await asyncio.sleep(0.05)
        end = chat_event({}, 99).replace(b'"finish_reason":null', b'"finish_reason":"stop"').partition(b"\r\n")[2]
        writer.write(chunk(end.removesuffix(b"\r\n")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with moved_about(tmp_path, script) as gateway:
        got = await stream(f"{gateway.url}{PATHS[1]}", request(PATHS[1]), "one")
        events = [json.loads(event[6:]) for event in got.split(b"\n\n") if event.startswith(b"data: {")]
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "".join(CODE)
        assert outcomes(gateway)["moved"] >= 1


async def test_without_rescue_a_stream_breaks_with_its_engine(line: Line) -> None:
    """`streams.rescue: false`: no tokens are kept."""
    gateway = await line.start(shuffle_s=None, slower=4, streams={"rescue": False})

    def watch(got: bytes) -> None:
        if got.count(b"data: ") > 10:
            for name in ("d0", "d1", "p0"):
                line.kill(name)

    with pytest.raises(httpx.RemoteProtocolError):
        await stream(f"{gateway.url}{PATHS[0]}", request(PATHS[0]), "one", watch)
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
    assert gateway.requests()[0]["reason"] == "upstream-broke"


async def test_a_stream_breaks_when_no_engine_is_left_to_go_on(line: Line) -> None:
    """With an error event, as ever."""
    gateway = await line.start(shuffle_s=None, slower=4)
    last = b""

    def watch(got: bytes) -> None:
        nonlocal last
        last = got
        if got.count(b"data: ") > 10:
            for name in line.engines:
                line.kill(name)

    with pytest.raises(httpx.RemoteProtocolError):
        await stream(f"{gateway.url}{PATHS[0]}", request(PATHS[0]), "one", watch)
    assert b"upstream-broke" in last
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
    entry = gateway.request()
    assert (entry["outcome"], entry["reason"]) == ("failed", "upstream-broke")
