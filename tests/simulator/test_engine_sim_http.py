"""engine-sim's HTTP/1.1 on the wire: malformed requests get 4xx and a closed connection, the rest goes on."""

import asyncio
import json
import random

import pytest

from ballast_sim.engine_sim.options import KvTransfer
from tests.support.engine_sim import engine_sim

pytestmark = pytest.mark.rotating(4, each=True)


async def exchange(port: int, data: bytes, answers: int) -> bytes:
    """Send bytes, and read until there are so many answers or the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    received = b""
    async with asyncio.timeout(10):
        while received.count(b"HTTP/1.1 ") < answers or not received.endswith((b"\r\n\r\n", b"}")):
            piece = await reader.read(65536)
            if not piece:
                break
            received += piece
    writer.close()
    await writer.wait_closed()
    return received


MALFORMED = {
    "no HTTP": (b"GARBAGE\r\n\r\n", 400),
    "bytes": (b"\x00\xff" * 50, 400),
    "negative length": (b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "long target": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
    "long header": (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
}


@pytest.mark.parametrize(("data", "status"), MALFORMED.values(), ids=MALFORMED)
async def test_malformed_requests_are_refused_and_the_connection_is_closed(data: bytes, status: int) -> None:
    """In the shape of OpenAI's errors; the server lives on."""
    async with engine_sim() as (server, client):
        answer = await exchange(server.port, data, 2)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == status
        assert (await client.get("/health")).status_code == 200


async def test_pipelined_chunked_and_upgrading_requests_are_answered_in_order() -> None:
    """Four in one segment: a chunked body, an upgrade that is not taken up, HEAD without a body, a plain one."""
    body = b'5\r\n{"pro\r\n1c\r\nmpt":"hi","max_tokens":1   }\r\n0\r\n\r\n'
    data = (
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        + body
        + b"GET /ping HTTP/1.1\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n\r\n"
        + b"HEAD /version HTTP/1.1\r\n\r\n"
        + b"GET /version HTTP/1.1\r\n\r\n"
    )
    async with engine_sim() as (server, _):
        answers = (await exchange(server.port, data, 4)).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200"] * 4
    assert b'"object":"text_completion"' in answers[0]
    assert answers[2].endswith(b"content-length: 20\r\n\r\n")
    assert answers[3].endswith(b'{"version":"0.32.0"}')


async def test_no_body_makes_the_server_fail() -> None:
    """600 mutations of a good body: 200 or 4xx, never 5xx."""
    good = (
        b'{"prompt":"hello","max_tokens":2,"stream":true,"stream_options":{"include_usage":true},"priority":1,"seed":3,'
        b'"kv_transfer_params":{"do_remote_decode":true},"vllm_xargs":{"ballast_output_tokens":1},"n":1}'
    )
    rng = random.Random(1)
    seen: set[int] = set()
    async with engine_sim(role=KvTransfer()) as (_, client):
        for _ in range(600):
            body = bytearray(good)
            for _ in range(rng.randint(1, 5)):
                at = rng.randrange(len(body))
                match rng.randrange(3):
                    case 0:
                        body[at] = rng.randrange(256)
                    case 1:
                        del body[at : at + rng.randint(1, 5)]
                    case _:
                        body[at:at] = bytes(rng.choices(b'[]{}",:0123456789.eE-+truefalsn', k=3))
            answer = await client.post("/v1/completions", content=bytes(body))
            assert answer.status_code < 500, (bytes(body), answer.text)
            seen.add(answer.status_code)
    assert {200, 400} <= seen


async def test_thousands_of_pipelined_upgrades_are_answered_without_recursion() -> None:
    async with engine_sim() as (server, client):
        offer = b"GET /ping HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
        assert (await exchange(server.port, offer * 3000, 3000)).count(b"HTTP/1.1 200 ") == 3000
        assert (await client.get("/health")).status_code == 200
