"""Hostile clients and broken engines against the proxy face: what once broke it, or took more than its share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ballast_gateway.errors import ApiError
from ballast_gateway.http.requests import HttpRequest, RequestReader
from ballast_gateway.openai_body import InvalidBody, parse_object
from ballast_gateway.proxy.bodies import read_generation
from ballast_gateway.proxy.sse import has_token
from tests.support.gateway_kit import RunningGateway, assert_openai_error, post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import (
    Asked,
    Script,
    ScriptedEngine,
    completion,
    decode_script,
    json_reply,
    prefill_script,
    scripted_engine,
)

BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 2}
ENDS = "connection: close"


@asynccontextmanager
async def pair(
    tmp_path: Path, prefill: Script = prefill_script, decode: Script = decode_script
) -> AsyncIterator[tuple[RunningGateway, ScriptedEngine]]:
    """A gateway in front of one prefill and one decode engine; gives the decode engine."""
    async with (
        scripted_engine(prefill) as p,
        scripted_engine(decode) as d,
        running_gateway(tmp_path, {"p1": p.address, "d1": d.address}) as gateway,
    ):
        yield gateway, d


async def test_a_limit_beyond_64_bits_neither_fails_nor_breaks_the_ledger(tmp_path: Path) -> None:
    """One such request once left the ledger inconsistent: later requests of all clients were answered 500."""
    async with pair(tmp_path) as (gateway, _):
        for limit in (2**63, 10**400):
            [answer] = await raw_exchange(gateway.port, post("/v1/completions", {**BODY, "max_tokens": limit}, ENDS))
            assert answer.status == 200  # the engine judges whether it is too much
        for _ in range(3):
            [answer] = await raw_exchange(gateway.port, post("/v1/completions", BODY, ENDS))
            assert answer.status == 200
        assert len(gateway.gateway.driver.director.ledger) == 0


async def test_a_stream_whose_client_asked_to_close_is_completed_not_cancelled(tmp_path: Path) -> None:
    """HTTP/1.0 proxies and `Connection: close` end the connection with the answer: that client has not left early."""
    async with pair(tmp_path) as (gateway, _):
        [answer] = await raw_exchange(gateway.port, post("/v1/completions", {**BODY, "stream": True}, ENDS))
        assert answer.whole
        await until(lambda: len(gateway.requests()) == 1)
        [record] = gateway.requests()
        assert (record["outcome"], record["output_tokens"]) == ("completed", 3)


async def test_thousands_of_pipelined_upgrades_are_ignored_without_recursion(tmp_path: Path) -> None:
    async with pair(tmp_path) as (gateway, _):
        offer = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
        answers = await raw_exchange(gateway.port, offer * 3000, answers=3000)
        assert {answer.status for answer in answers} == {200}


@pytest.mark.parametrize("stuffing", [b"0\r\nx-trailer: ", b"5;extension="])
def test_a_trailer_or_chunk_extension_that_never_ends_is_bounded_by_the_header_limit(stuffing: bytes) -> None:
    """The body's limit does not bound it: each piece is appended to what is held, at a quadratic price."""
    reader = RequestReader(max_header_bytes=4096, max_body_bytes=1 << 24)
    reader.feed(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
    reader.feed(stuffing)
    fed = 0
    while reader.error is None and fed < 1 << 20:
        reader.feed(b"a" * 1024)
        fed += 1024
    assert isinstance(reader.error, ApiError)
    assert reader.error.status == 431
    assert fed <= 2 * 4096


def test_small_chunks_are_no_trailers() -> None:
    reader = RequestReader(max_header_bytes=256, max_body_bytes=1 << 16)
    reader.feed(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(1000):
        for byte in (b"1", b"\r", b"\n", b"x", b"\r", b"\n"):
            reader.feed(byte)
    reader.feed(b"0\r\n\r\n")
    assert reader.error is None
    assert reader.requests[0].body == b"x" * 1000


def test_a_content_length_of_63_bits_is_refused_before_the_body() -> None:
    reader = RequestReader(max_header_bytes=4096, max_body_bytes=1024)
    reader.feed(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (2**63 - 1))
    assert reader.error is not None
    assert reader.error.status == 413


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "the body is empty"),
        (b'{"temperature": NaN}', "NaN is no JSON number"),
        (b'{"top_p": -Infinity}', "-Infinity is no JSON number"),
        (b'{"prompt": "\xed\xa0\x80"}', "not UTF-8 text (byte 12)"),
        (b'{"max_tokens": 1%b}' % (b"0" * 5000), "max_tokens: the number is too large"),
    ],
)
def test_what_python_parses_but_is_no_json_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(InvalidBody) as caught:
        parse_object(raw)
    assert says in str(caught.value)


@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty", "frequency_penalty"])
def test_a_number_that_overflows_is_refused_by_name(field: str) -> None:
    """1e999 is JSON, and infinity once it is read."""
    with pytest.raises(InvalidBody) as caught:
        read_generation(b'{"model": "tiny", "prompt": "x", "%b": 1e999}' % field.encode(), chat=False)
    assert caught.value.param == field


async def test_an_unasked_answer_does_not_mix_with_the_one_before(tmp_path: Path) -> None:
    async def twice(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(json_reply(completion("mine")) + json_reply({"foreign": True}, 404, b"x-foreign: yes\r\n"))

    async with pair(tmp_path, decode=twice) as (gateway, engine):
        for _ in range(2):
            [answer] = await raw_exchange(gateway.port, post("/v1/completions", BODY, ENDS))
            assert (answer.status, answer.json()["choices"][0]["text"]) == (200, "mine")
            assert set(answer.json()) == set(completion())
            assert "x-foreign" not in answer.headers
        assert len(engine.asked) == 2


@pytest.mark.parametrize("status", [204, 302, 304])
async def test_an_engine_that_answers_neither_200_nor_an_error_has_failed(tmp_path: Path, status: int) -> None:
    async def odd(asked: Asked, writer: asyncio.StreamWriter) -> None:
        framing = b"content-length: 0\r\n" if status == 302 else b""
        writer.write(b"HTTP/1.1 %d Odd\r\nlocation: http://elsewhere/\r\n%b\r\n" % (status, framing))

    async with pair(tmp_path, prefill=odd, decode=odd) as (gateway, _):
        [answer] = await raw_exchange(gateway.port, post("/v1/completions", BODY, ENDS))
        assert assert_openai_error(answer)["code"] in ("upstream-failed", "breaks-engines")
        assert "location" not in answer.headers


def test_an_event_nested_beyond_reason_is_no_token_and_no_crash() -> None:
    assert not has_token(b'data: {"choices": ' + b"[" * 100_000)
    assert has_token(b"data: " + json.dumps({"choices": [{"text": "a"}]}).encode())


async def test_what_comes_for_a_connection_that_was_just_lost_is_dropped(tmp_path: Path) -> None:
    """The engine's next event may come before the request has ended: it must not look like a fault of the engine."""
    async with pair(tmp_path) as (gateway, _):
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        face = gateway.gateway.proxy
        assert face is not None
        await until(lambda: len(face.connections) == 1)
        [client] = face.connections
        client._request = HttpRequest(b"POST", b"/", [], b"", keep_alive=True, http11=True)
        client.start_stream(200, [])
        client._transport.abort()
        await until(lambda: not face.connections)
        client.write(b"data: late\n\n")
        client.end()
        writer.close()
