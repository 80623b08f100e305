"""What the pod's agent passes on as it is: requests without a plan, uploads, upgrades, and what smugglers try."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
import uvicorn

from ballast_gateway.podapi import messages
from tests.gateway.test_agent import BODY, GONE, breaking_script, text_of, whole_script
from tests.support.agents import ask, plan, plan_header, running_agent
from tests.support.gateway_kit import assert_openai_error, post, raw_exchange, until
from tests.support.pod_api_calls import request_bytes
from tests.support.raw_server import raw_server
from tests.support.scripted_engine import (
    HANDLE,
    Asked,
    chunk,
    decode_script,
    scripted_engine,
    silent_server,
)


async def test_requests_without_a_plan_pass_as_they_are(tmp_path: Path) -> None:
    """Bodies of peers' legs, any route, any method; of headers only those of control are taken out."""
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        body = b'{ "prompt": [1, 2, 3],  "kv_transfer_params": {"do_remote_prefill": true} }'
        control = ("x-data-parallel-rank: 1", "x-prefiller-host-port: 10.0.0.9:80", "x-kept: yes")
        answer = await ask(at, body, *control)
        assert text_of(answer.body) == "abc"
        (asked,) = engine.asked
        assert asked.raw == body
        assert asked.headers["x-kept"] == "yes"
        assert not {"x-data-parallel-rank", "x-prefiller-host-port"} & asked.headers.keys()
        gets = [request_bytes("GET", path, b"") for path in ("/metrics", "/v1/models")]
        page, models = await raw_exchange(at.port, *gets, answers=2)
        assert page.body == models.body == engine.metrics
        assert at.agent.face.passing == 0
        assert at.agent.face.held == {}


async def test_chunked_uploads_pipelined_requests_and_heads_keep_their_ends(tmp_path: Path) -> None:
    """Framing is followed exactly: each request gets its own answer."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            body = b""
            if b"chunked" in head:
                while size := int(await reader.readline(), 16):
                    body += (await reader.readexactly(size + 2))[:-2]
                await reader.readline()
            elif match := re.search(rb"content-length: (\d+)", head):
                body = await reader.readexactly(int(match[1]))
            seen.append(body)
            bare = b"" if head.startswith(b"HEAD") else b"ok"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + bare)

    async with raw_server(serve) as address, running_agent(tmp_path, address) as at:
        upload = b"POST /v1/audio HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        chunks = [chunk(b"x" * 1000) for _ in range(50)]
        answers = await raw_exchange(at.port, upload, *chunks, b"0\r\n\r\n", answers=1)
        assert (answers[0].body, seen.pop()) == (b"ok", b"x" * 50_000)
        several = b"".join(post("/a", b"body %d" % number) for number in range(5))
        answers = await raw_exchange(at.port, several, answers=5)
        assert [answer.body for answer in answers] == [b"ok"] * 5
        assert seen == [b"body %d" % number for number in range(5)]
        split = post("/a", b"slowly")
        answers = await raw_exchange(at.port, *(split[k : k + 7] for k in range(0, len(split), 7)), answers=1)
        assert seen.pop() == b"slowly"
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_a_smuggled_request_is_refused(tmp_path: Path) -> None:
    """What follows a chunked body in the same bytes would reach the engine unread."""
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        upload = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        (answer,) = await raw_exchange(at.port, upload + post("/v1/completions", BODY, "x-data-parallel-rank: 1"))
        assert answer.status == 400
        for bad in (
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: x\r\nx-data-parallel-rank : 1\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: x\nx-data-parallel-rank: 1\r\n\r\n",
            b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
            b"garbage\r\n\r\n",
            b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000,
        ):
            (answer,) = await raw_exchange(at.port, bad)
            assert 400 <= answer.status < 500, bad[:40]
        assert engine.asked == []


async def _echoing_app(scope: Any, receive: Any, send: Any) -> None:
    """Says what it was asked; /slow takes a while to."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await asyncio.sleep(0.2 if scope["path"] == "/slow" else 0.05)
    said = scope["path"].encode() + b" " + body
    headers = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


@asynccontextmanager
async def uvicorn_server(http: Literal["h11", "httptools"]) -> AsyncIterator[str]:
    """The HTTP server that vLLM has, with keep-alive. Yields its address."""
    config = uvicorn.Config(_echoing_app, http=http, log_level="critical", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


_SMUGGLED = post("/v1/completions", b"smuggled", "x-data-parallel-rank: 1")
_OFFERS = {
    "a websocket": b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "another": b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n",
    "with a body": post("/slow", b"body", "connection: upgrade", "upgrade: websocket"),
    "chunked": b"POST /slow HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("split", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("offer", _OFFERS.values(), ids=_OFFERS)
async def test_who_offers_an_upgrade_gets_nothing_into_anothers_connection(
    tmp_path: Path, offer: bytes, http: Literal["h11", "httptools"], split: bool
) -> None:
    """A second client and a third get their own answers, whatever was sent behind the offer."""
    async with uvicorn_server(http) as engine, running_agent(tmp_path, engine) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.writelines([offer] if split else [offer, _SMUGGLED])
        if split:
            await asyncio.sleep(0.1)
            writer.write(_SMUGGLED)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        for number in range(2):
            victim = b"victim %d" % number
            (answer,) = await raw_exchange(at.port, post("/v1/completions", victim), answers=1)
            assert answer.body == b"/v1/completions " + victim
        writer.close()


async def test_what_follows_an_offer_waits_for_the_engine_to_take_it(tmp_path: Path) -> None:
    """A WebSocket passes both ways; of one that is not taken nothing more reaches the engine, on a link of its own."""
    takes = asyncio.Event()
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        await asyncio.sleep(0.1)  # what comes after the head has reached the agent
        if takes.is_set():
            writer.write(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello")
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        while data := await reader.read(1000):
            seen.append(data)
            writer.write(b"<" + data + b">")

    offer = b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n"
    async with raw_server(serve) as address, running_agent(tmp_path, address) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(offer + _SMUGGLED)
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 404")
        assert seen == [offer]
        writer.close()
        takes.set()
        seen.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(offer + b"early")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhello<early>"), 20)
        writer.write(b"x-ballast-plan: y\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"<x-ballast-plan: y\r\n\r\n>"), 20)
        assert seen[:2] == [offer, b"early"]
        assert at.agent.face.passing == 1
        writer.close()
        await until(lambda: not at.agent.face.passing)


async def test_other_offers_of_upgrades_are_ignored(tmp_path: Path) -> None:
    """As on the proxy face: Java's client offers h2c, and keeps its connection. A 101 that nobody offered is an end."""
    switching = asyncio.Event()
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            seen.append(head)
            if switching.is_set():
                writer.write(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    request = b"GET /a HTTP/1.1\r\nhost: x\r\n%b\r\n"
    async with raw_server(serve) as address, running_agent(tmp_path, address) as at:
        answers = await raw_exchange(at.port, (request % offer) * 2, answers=2)
        assert [answer.body for answer in answers] == [b"ok"] * 2
        assert seen == [request % b""] * 2
        switching.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(request % b"")
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert not at.agent.face.passing


@pytest.mark.rotating(3)
async def test_bytes_flow_only_as_fast_as_they_are_taken(tmp_path: Path) -> None:
    """Both ways: a slow client stops the engine, a slow engine stops the client. The agent holds little of either."""
    piece = b"x" * 65_536
    written = 0
    stopped = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(piece) * 2000))
        for _ in range(2000):
            writer.write(piece)
            drain = asyncio.ensure_future(writer.drain())
            done, _ = await asyncio.wait({drain}, timeout=1.0)
            if not done:
                stopped.set()
            await drain
            written += len(piece)

    async with raw_server(serve) as address, running_agent(tmp_path, address) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port, limit=65_536)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(stopped.wait(), 30)
        assert written < len(piece) * 1000
        await reader.readuntil(b"\r\n\r\n")
        left = len(piece) * 2000
        while left:
            left -= len(await asyncio.wait_for(reader.read(1 << 20), 20))
        writer.close()
    async with silent_server() as address, running_agent(tmp_path, address) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(b"POST /large HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (1 << 30))
        writer.transport.set_write_buffer_limits(high=65_536)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < len(piece) * 2000:
                writer.write(piece)
                await asyncio.wait_for(writer.drain(), 2)
                sent += len(piece)
        assert sent < len(piece) * 1000
        writer.transport.abort()
        at.agent.face.client_stall_timeout_s = 0.1
        await until(lambda: at.agent.face.passing == 0)


async def test_a_client_that_leaves_takes_the_engines_connection_along(tmp_path: Path) -> None:
    """So the engine stops at once."""
    asked = asyncio.Event()

    async def hangs(asked_: Asked, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with scripted_engine(hangs) as engine, running_agent(tmp_path, engine.address) as at:
        _, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(post("/v1/completions", BODY))
        await asyncio.wait_for(asked.wait(), 20)
        writer.close()
        await asyncio.wait_for(engine.hung_up.wait(), 20)
        await until(lambda: at.agent.face.passing == 0)


async def test_an_engine_that_is_away_is_a_503_and_one_that_closes_idle_connections_is_asked_again(
    tmp_path: Path,
) -> None:
    """So Envoy, or a peer, tries another endpoint; a stale connection is nobody's fault."""
    async with running_agent(tmp_path, GONE) as at:
        answer = await ask(at, BODY)
        assert (answer.status, assert_openai_error(answer)["code"]) == (503, "engine-unreachable")
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        engine.close_after = True
        for _ in range(5):
            answer = await ask(at, BODY)
            assert text_of(answer.body) == "abc"


async def test_an_answer_that_breaks_off_is_seen_as_broken(tmp_path: Path) -> None:
    """The client's connection is cut, too."""
    async with scripted_engine(breaking_script) as engine, running_agent(tmp_path, engine.address) as at:
        answer = await ask(at, BODY)
        assert not answer.whole


async def test_a_stock_llmd_picker_is_followed_only_if_the_agent_was_told_to(tmp_path: Path) -> None:
    """`x-prefiller-host-port`: prefill there, decode here. Without the flag the header is dropped."""
    async with scripted_engine(whole_script) as prefill, scripted_engine(whole_script) as decode:
        header = f"x-prefiller-host-port: {prefill.address},{prefill.address}"
        async with running_agent(tmp_path, decode.address, trust_prefiller_header=True) as at:
            answer = await ask(at, BODY, header, "x-request-id: mine")
            assert text_of(answer.body) == "abc"
            assert answer.headers["x-request-id"] == "mine"
            (first,), (second,) = prefill.asked, decode.asked
            assert first.headers["x-request-id"] == second.headers["x-request-id"] == "mine"
            assert second.body["kv_transfer_params"] == HANDLE
            both = await asyncio.gather(*(ask(at, BODY, header, "x-request-id: mine") for _ in range(2)))
            assert [text_of(each.body) for each in both] == ["abc", "abc"]
            alone = await ask(at, BODY, f"x-prefiller-host-port: {GONE}")
            assert text_of(alone.body) == "abc"
        prefill.asked.clear()
        async with running_agent(tmp_path, decode.address) as at:
            assert text_of((await ask(at, BODY, header)).body) == "abc"
            assert prefill.asked == []


async def test_mutated_requests_leave_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of them, whole and spoilt, on both ports: no fault of ours, nothing held, and the next one is served."""
    random = Random(7)

    async def lenient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with raw_server(lenient) as engine, running_agent(tmp_path, engine) as at:

        async def one(number: int) -> None:
            bases = (
                post("/v1/completions", BODY, plan_header(plan(at.place, id=f"r{number}", max_retries=0))),
                post("/v1/completions", BODY),
                b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
                b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nxyz",
                request_bytes("GET", messages.EVENTS, b"", "authorization: Ballast t=1,n=2,s=3"),
            )
            data = bytearray(b"".join(random.choices(bases, k=random.randrange(1, 4))))
            for _ in range(random.choice([0, 1, 3, 10])):
                place = random.randrange(len(data))
                data[place : place + random.randrange(4)] = random.randbytes(random.randrange(4))
            cut = random.randrange(len(data))
            reader, writer = await asyncio.open_connection("127.0.0.1", random.choice([at.port, at.pod_api]))
            for part in (data[:cut], data[cut:]):
                writer.write(bytes(part))
                await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(reader.read(4096), 0.02)
            writer.transport.abort()

        for start in range(0, 400, 20):
            await asyncio.gather(*(one(start + number) for number in range(20)))
        await until(lambda: not at.agent.face.held and not at.agent.face.passing)
        assert at.agent.face.clients.held_bytes == 0
        assert (await ask(at, BODY)).body == b"ok"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("held_first", [False, True])
async def test_an_unreachable_engine_is_said_on_any_connection(tmp_path: Path, held_first: bool) -> None:
    """Also after another request's answer: a client that sees a reset would not know that it may try elsewhere."""
    async with scripted_engine(decode_script) as engine, running_agent(tmp_path, engine.address) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        if held_first:
            writer.write(post("/v1/completions", BODY | {"n": 2, "stream": False}, plan_header(plan(agent.place))))
            assert b" 200 " in await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
        agent.agent.face.links._port = 9  # where nobody listens
        agent.agent.face.links.drop()
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 503 " in await asyncio.wait_for(reader.readline(), 20)
        writer.close()


async def test_an_answer_before_the_request_is_sent_is_not_lost(tmp_path: Path) -> None:
    """An engine refuses by the head alone, and a connection that is closed over unread bytes is reset."""

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 X\r\ncontent-length: 2\r\n\r\nno")
        while await reader.read(1 << 20):
            pass

    async with raw_server(refuses) as address, running_agent(tmp_path, address) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n")
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 20)
        for _ in range(8):
            writer.write(b"a" * 1_000_000)
            await writer.drain()
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"no")
        writer.close()


async def test_a_fault_in_reading_a_body_keeps_none_of_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    async with scripted_engine(decode_script) as engine, running_agent(tmp_path, engine.address) as agent:
        with monkeypatch.context() as patched:
            patched.setattr("ballast_gateway.agent.face._read", fault)
            answer = await ask(agent, BODY, plan_header(plan(agent.place)))
            assert answer.status == 500
        assert agent.agent.face.clients.held_bytes == 0
        huge = await ask(agent, BODY | {"seed": "1" + "0" * 400}, plan_header(plan(agent.place, id="r2")))
        assert huge.status == 200, "whole numbers of any length are the engine's to judge"
        assert agent.agent.face.clients.held_bytes == 0
