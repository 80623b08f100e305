"""The proxy face as an HTTP/1.1 server, over real sockets: framing, limits, malformed input, and what it survives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.gateway_kit import (
    Answer,
    RunningGateway,
    assert_openai_error,
    post,
    raw_exchange,
    running_gateway,
    until,
)
from tests.support.scripted_engine import Asked, ScriptedEngine, decode_script, prefill_script, scripted_engine

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\n"
GET_MODELS = b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n"
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 3}


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with scripted_engine(decode_script) as made:
        yield made


@pytest.fixture
async def gateway(tmp_path: Path, engine: ScriptedEngine) -> AsyncIterator[RunningGateway]:
    """One flexible endpoint, small limits."""
    limits = {"maxBodyBytes": 4096, "maxHeaderBytes": 2048}
    async with running_gateway(tmp_path, {"f0": engine.address}, limits=limits) as made:
        yield made


async def lives_on(gateway: RunningGateway) -> None:
    """A good request on a new connection is served."""
    (answer,) = await raw_exchange(gateway.port, post("/v1/completions", COMPLETION), answers=1)
    assert answer.status == 200


MALFORMED: dict[str, tuple[bytes, int]] = {
    "no HTTP at all": (b"hello world\r\n\r\n", 400),
    "a TLS client hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64, 400),
    "HTTP/2 prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/2.0 in the request line": (b"POST / HTTP/2.0\r\nhost: g\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /v1/models\r\n\r\n", 400),
    "an unknown method": (b"FROBNICATE / HTTP/1.1\r\nhost: g\r\n\r\n", 400),
    "no Host": (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    "Content-Length and Transfer-Encoding": (
        HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "Transfer-Encoding and Content-Length": (
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two Content-Lengths": (HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
    "two equal Content-Lengths": (HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc", 400),
    "a list as Content-Length": (HEAD + b"content-length: 3, 3\r\n\r\nabc", 400),
    "a signed Content-Length": (HEAD + b"content-length: +3\r\n\r\nabc", 400),
    "a negative Content-Length": (HEAD + b"content-length: -3\r\n\r\nabc", 400),
    "a hexadecimal Content-Length": (HEAD + b"content-length: 0x3\r\n\r\nabc", 400),
    "an overflowing Content-Length": (HEAD + b"content-length: 99999999999999999999999\r\n\r\n", 400),
    "a transfer coding before chunked": (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "a transfer coding after chunked": (HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "an unknown transfer coding": (HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a chunk size that is none": (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400),
    "a negative chunk size": (HEAD + b"transfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", 400),
    "a chunk longer than it says": (HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n", 400),
    "a space before the colon": (HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "a folded header": (HEAD + b"x: a\r\n b\r\n\r\n", 400),
    "bare line feeds": (b"GET /v1/models HTTP/1.1\nhost: g\n\n", 400),
    "a NUL in a header": (HEAD + b"x: a\x00b\r\n\r\n", 400),
    "a header without a name": (HEAD + b": x\r\n\r\n", 400),
    "a header without a colon": (HEAD + b"nonsense\r\n\r\n", 400),
    "a space in the target": (b"GET /v1/ models HTTP/1.1\r\nhost: g\r\n\r\n", 400),
    "an unknown expectation": (HEAD + b"expect: tea\r\ncontent-length: 3\r\n\r\nabc", 417),
    "a content coding": (HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc", 415),
    "CONNECT": (b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n", 405),
    "one header that is too long": (HEAD + b"x: " + b"a" * 3000 + b"\r\n\r\n", 431),
    "too many headers": (HEAD + b"".join(b"x-%d: yyyy\r\n" % k for k in range(300)) + b"\r\n", 431),
    "a target that is too long": (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: g\r\n\r\n", 431),
    "a body said to be too long": (HEAD + b"content-length: 5000\r\n\r\n", 413),
    "a chunked body that is too long": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"800\r\n" + b"a" * 2048 + b"\r\n" + b"900\r\n" + b"a" * 2304,
        413,
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_http_gets_an_openai_shaped_4xx_and_the_connection_is_closed(
    gateway: RunningGateway, engine: ScriptedEngine, case: str
) -> None:
    """Framing that is wrong is never guessed at: no engine sees anything of it, and the gateway lives on."""
    data, status = MALFORMED[case]
    (answer,) = await raw_exchange(gateway.port, data)
    assert answer.status == status
    assert_openai_error(answer)
    assert answer.headers["connection"] == "close"
    assert engine.asked == []
    await lives_on(gateway)


@pytest.mark.parametrize("case", ["a header that never ends", "a chunk extension that never ends", "trailers"])
async def test_what_never_ends_is_cut_off(gateway: RunningGateway, case: str) -> None:
    """llhttp calls back only when something is complete, so the bytes themselves are counted."""
    start = {
        "a header that never ends": HEAD + b"x: ",
        "a chunk extension that never ends": HEAD + b"transfer-encoding: chunked\r\n\r\n3;",
        "trailers": HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ",
    }[case]
    parts = [start, *[b"a" * 2048] * 40]
    (answer,) = await raw_exchange(gateway.port, *parts, pause_s=0.001)
    assert answer.status in (413, 431)
    assert_openai_error(answer)
    await lives_on(gateway)


async def test_a_request_in_single_bytes_is_served(gateway: RunningGateway) -> None:
    """TCP keeps no boundaries."""
    data = post("/v1/completions", COMPLETION)
    (answer,) = await raw_exchange(gateway.port, *[data[k : k + 1] for k in range(len(data))], answers=1)
    assert answer.status == 200


async def test_a_chunked_body_is_served(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """Chunks, an extension and a trailer; the trailer becomes no header."""
    raw = json.dumps(COMPLETION).encode()
    chunks = b"%x;ext=1\r\n%b\r\n%x\r\n%b\r\n0\r\nx-request-id: trailer\r\n\r\n" % (5, raw[:5], len(raw) - 5, raw[5:])
    (answer,) = await raw_exchange(gateway.port, HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks, answers=1)
    assert answer.status == 200
    assert COMPLETION.items() <= engine.asked[0].body.items()
    assert answer.headers["x-request-id"] != "trailer"


async def test_a_connection_serves_request_after_request(gateway: RunningGateway) -> None:
    """Keep-alive, errors of the application included."""
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        statuses = [
            (await client.get("/v1/models")).status_code,
            (await client.get("/nowhere")).status_code,
            (await client.post("/v1/completions", json=COMPLETION)).status_code,
        ]
    assert statuses == [200, 404, 200]
    assert len(gateway.gateway.proxy.connections if gateway.gateway.proxy else ()) <= 1


async def test_pipelined_requests_are_answered_in_their_order(gateway: RunningGateway) -> None:
    """A generation between two listings; all three sent at once."""
    answers = await raw_exchange(gateway.port, GET_MODELS + post("/v1/completions", COMPLETION) + GET_MODELS, answers=3)
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [answer.json()["object"] for answer in answers] == ["list", "text_completion", "list"]


async def test_thousands_of_pipelined_requests_are_answered(gateway: RunningGateway) -> None:
    """In one write: neither the stack nor the order suffers."""
    answers = await raw_exchange(gateway.port, GET_MODELS * 3000, answers=3000)
    assert [answer.status for answer in answers] == [200] * 3000


async def test_garbage_after_a_good_request_does_not_spoil_its_answer(gateway: RunningGateway) -> None:
    """First the answer, then the refusal."""
    answers = await raw_exchange(gateway.port, post("/v1/completions", COMPLETION) + b"garbage\r\n\r\n")
    assert [answer.status for answer in answers] == [200, 400]


async def test_connection_close_is_honoured(gateway: RunningGateway) -> None:
    """And what follows it is ignored."""
    request = b"GET /v1/models HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"
    answers = await raw_exchange(gateway.port, request + GET_MODELS)
    assert [answer.status for answer in answers] == [200]
    assert answers[0].headers["connection"] == "close"


async def test_http_1_0_is_answered_and_closed(gateway: RunningGateway) -> None:
    """Without a chunked coding, which HTTP/1.0 does not have."""
    raw = json.dumps({**COMPLETION, "stream": True}).encode()
    request = b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw
    (answer,) = await raw_exchange(gateway.port, request)
    assert answer.status == 200
    assert "transfer-encoding" not in answer.headers
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_head_has_no_body(gateway: RunningGateway) -> None:
    """HEAD of what GET takes."""
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        answer = await client.head("/v1/models")
    assert answer.status_code == 200
    assert answer.content == b""
    assert int(answer.headers["content-length"]) > 0


@pytest.mark.rotating(4)
async def test_answers_that_a_client_does_not_read_do_not_pile_up(gateway: RunningGateway) -> None:
    """Nor are its further requests read, until it reads again: then all are answered."""
    count = 40_000  # some fifteen megabytes of answers
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
    writer.write(GET_MODELS * count)
    face = gateway.gateway.proxy
    assert face is not None
    await until(lambda: any(each._stalled_since_s is not None for each in face.connections))
    await asyncio.sleep(0.5)
    [connection] = face.connections
    assert connection._transport.get_write_buffer_size() < 1_000_000
    answered = 0
    async with asyncio.timeout(60):
        while answered < count:
            answered += (await reader.readuntil(b"]}")).count(b"]}")
    writer.close()


@pytest.mark.rotating(3)
@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_takes_a_large_answer_slowly_has_all_of_it(reads: bool, tmp_path: Path) -> None:
    """However long that is: only one that takes nothing for `clientStallTimeoutS` is cut."""
    large = json.dumps({"data": "x" * 24_000_000}).encode()

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(large) + large)

    async with (
        scripted_engine(answer) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, limits={"clientStallTimeoutS": 1}) as gateway,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        writer.write(post("/v1/embeddings", {"model": "tiny", "input": "a"}))
        await reader.readuntil(b"\r\n\r\n")
        taken = 0
        if reads:
            while taken < len(large) and (part := await reader.read(80_000)):
                taken += len(part)
                await asyncio.sleep(len(part) / 8e6)
            assert taken == len(large)
        else:
            face = gateway.gateway.proxy
            assert face is not None
            await until(lambda: not face.connections)
        writer.close()


async def test_expect_100_continue_is_answered_before_the_body(gateway: RunningGateway) -> None:
    """The client sends its body only then."""
    raw = json.dumps(COMPLETION).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(raw))
    async with asyncio.timeout(20):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(raw)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_the_body_is_asked_for_behind_another_request_too(gateway: RunningGateway) -> None:
    """As soon as that is answered: the client has nothing else to send."""
    raw = json.dumps(COMPLETION).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(post("/v1/completions", COMPLETION))
    writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(raw))
    async with asyncio.timeout(20):
        assert b" 200 " in await reader.readline()
        await reader.readuntil(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(raw)
        assert b" 200 " in await reader.readline()
    writer.close()


async def test_a_client_of_http_1_0_gets_no_interim_answer_and_no_chunks(gateway: RunningGateway) -> None:
    """It would take the former for the answer, also before its head is whole. An offered upgrade does not make it one
    of HTTP/1.1."""
    raw = json.dumps({**COMPLETION, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: %d\r\n" % len(raw)
    for offer in (b"", b"connection: upgrade\r\nupgrade: h2c\r\n"):
        parts = (head + offer + b"accept:", b" */*\r\n\r\n", raw)
        (answer,) = await raw_exchange(gateway.port, *parts, pause_s=0.2)
        assert answer.status == 200
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_a_body_too_large_is_refused_before_it_is_sent(gateway: RunningGateway) -> None:
    """With Expect: 100-continue the client never sends it."""
    (answer,) = await raw_exchange(gateway.port, HEAD + b"expect: 100-continue\r\ncontent-length: 99999\r\n\r\n")
    assert answer.status == 413


async def test_an_offered_upgrade_is_ignored(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """Java's HTTP client offers h2c with each first request, body included."""
    raw = json.dumps(COMPLETION).encode()
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    (answer,) = await raw_exchange(
        gateway.port, HEAD + offer + b"content-length: %d\r\n\r\n" % len(raw) + raw, answers=1
    )
    assert answer.status == 200
    assert COMPLETION.items() <= engine.asked[0].body.items()
    assert "upgrade" not in engine.asked[0].headers


@pytest.mark.parametrize("options", ["close, Upgrade", "Upgrade, close", "upgrade,  CLOSE , x-mine"])
async def test_what_stands_beside_an_offered_upgrade_is_kept(
    gateway: RunningGateway, engine: ScriptedEngine, options: str
) -> None:
    """`close` closes, and a header of this connection only goes no further."""
    raw = json.dumps(COMPLETION).encode()
    offer = f"connection: {options}\r\nupgrade: h2c\r\nx-mine: 1\r\nx-empty:\r\n".encode()
    (answer,) = await raw_exchange(gateway.port, HEAD + offer + b"content-length: %d\r\n\r\n" % len(raw) + raw)
    assert answer.status == 200
    assert answer.headers["connection"] == "close"
    assert ("x-mine" in engine.asked[0].headers) is ("x-mine" not in options)
    assert engine.asked[0].headers["x-empty"] == ""


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("POST", "/v1/images", 404, None),
        ("GET", "/metrics", 404, None),
        ("GET", "/ballast/v1/endpoints", 404, None),
        ("GET", "/v1/models/tiny", 404, None),
        ("POST", "/v1/models", 405, "GET"),
        ("GET", "/v1/completions", 405, "POST"),
        ("PUT", "/v1/chat/completions", 405, "POST"),
        ("HEAD", "/v1/completions", 405, "POST"),
        ("OPTIONS", "*", 404, None),
    ],
)
async def test_only_the_routes_of_the_openai_api_exist(
    gateway: RunningGateway, method: str, path: str, status: int, allow: str | None
) -> None:
    """Nothing of the admin API, and nothing of the engines' own surface."""
    (answer,) = await raw_exchange(
        gateway.port, f"{method} {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n".encode()
    )
    assert answer.status == status
    assert answer.headers.get("allow") == allow
    assert len(gateway.requests()) == (path != "/metrics")
    if method != "HEAD":
        assert_openai_error(answer)


async def test_a_target_in_absolute_form_is_understood(gateway: RunningGateway) -> None:
    """As a client writes it that takes the gateway for its proxy; a query changes nothing."""
    answers = [
        (await raw_exchange(gateway.port, b"GET %b HTTP/1.1\r\nhost: g\r\n\r\n" % target, answers=1))[0].status
        for target in (b"http://gateway:8000/v1/models", b"/v1/models?limit=1")
    ]
    assert answers == [200, 200]


@pytest.mark.rotating(3)
async def test_a_half_sent_request_times_out(tmp_path: Path, engine: ScriptedEngine) -> None:
    """A slow head gets 408; an idle connection is just closed."""
    limits = {"requestTimeoutS": 0.3, "keepAliveTimeoutS": 0.3}
    async with running_gateway(tmp_path, {"f0": engine.address}, limits=limits) as gateway:
        (answer,) = await raw_exchange(gateway.port, b"POST /v1/comp")
        assert answer.status == 408
        assert_openai_error(answer)
        assert await raw_exchange(gateway.port) == []
        body_stops = HEAD + b"content-length: 100\r\n\r\n{"
        (answer,) = await raw_exchange(gateway.port, body_stops)
        assert answer.status == 408
        await lives_on(gateway)


async def test_clients_that_vanish_half_way_leave_nothing_behind(gateway: RunningGateway) -> None:
    """At every byte of a request."""
    data = post("/v1/completions", COMPLETION)
    for cut in range(0, len(data), 7):
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(data[:cut])
        await asyncio.sleep(0)
        writer.transport.abort()
    proxy = gateway.gateway.proxy
    assert proxy is not None
    await until(
        lambda: not proxy.connections and proxy.in_flight == 0 and not len(gateway.gateway.driver.director.ledger)
    )
    await lives_on(gateway)


FRAGMENTS = st.sampled_from(
    [
        b"POST /v1/completions HTTP/1.1\r\n",
        b"GET /v1/models HTTP/1.1\r\n",
        b"host: g\r\n",
        b"content-length: 5\r\n",
        b"content-length: 0\r\n",
        b"transfer-encoding: chunked\r\n",
        b"connection: close\r\n",
        b"connection: upgrade\r\nupgrade: h2c\r\n",
        b"expect: 100-continue\r\n",
        b"\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b'{"model":"tiny","prompt":"x"}',
        b"\x00\xff",
        b"a" * 3000,
    ]
)


async def test_no_bytes_crash_or_hang_it(gateway: RunningGateway) -> None:
    """Fuzz over real sockets: whatever comes back is whole HTTP, and a good client is served afterwards."""
    loop = asyncio.get_running_loop()
    failures: list[str] = []
    loop.set_exception_handler(lambda _, context: failures.append(str(context)))

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.one_of(FRAGMENTS, st.binary(max_size=40)), min_size=1, max_size=12), st.booleans())
    def fuzz(parts: list[bytes], split: bool) -> None:
        sent = parts if split else [b"".join(parts)]
        answers = asyncio.run_coroutine_threadsafe(talk(gateway.port, sent), loop).result(timeout=60)
        assert all(100 <= answer.status < 600 and answer.status != 500 for answer in answers)

    await asyncio.to_thread(fuzz)
    await lives_on(gateway)
    assert failures == []


async def talk(port: int, parts: list[bytes]) -> list[Answer]:
    """Send, then close our half; the server closes its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    from tests.support.gateway_kit import _Reader

    parsed = _Reader()
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0)
        writer.write_eof()
        async with asyncio.timeout(20):
            while data := await reader.read(1 << 16):
                parsed.parser.feed_data(data)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return parsed.answers


async def test_prefill_and_decode_serve_a_client(tmp_path: Path) -> None:
    """The fixture scripts do what the other tests take for granted."""
    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
    ):
        (answer,) = await raw_exchange(gateway.port, post("/v1/completions", COMPLETION), answers=1)
        assert answer.json()["choices"][0]["text"] == "abc"
        assert (len(prefill.asked), len(decode.asked)) == (1, 1)
