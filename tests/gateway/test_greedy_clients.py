"""One client cannot take the gateway from the others: shares of memory and connections, limits of size and of time.

Over real sockets, with small limits, in front of one engine that answers at once.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ballast_gateway.clients import Clients
from ballast_gateway.proxy.large_bodies import INLINE_BYTES, LargeBodies
from tests.support.gateway_kit import (
    RunningGateway,
    assert_openai_error,
    post,
    raw_exchange,
    running_gateway,
    until,
)
from tests.support.scripted_engine import decode_script, scripted_engine

PATH = "/v1/completions"
ENDS = "connection: close"
BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 2}
LARGE = {**BODY, "prompt": "a" * (2 * INLINE_BYTES)}


@asynccontextmanager
async def limited(tmp_path: Path, **limits: Any) -> AsyncIterator[RunningGateway]:
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, limits=limits) as made,
    ):
        yield made


def held(gateway: RunningGateway) -> int:
    assert gateway.gateway.proxy is not None
    return gateway.gateway.proxy.clients.held_bytes


def head(length: int, *lines: str) -> bytes:
    text = "".join(f"{line}\r\n" for line in ("host: g", f"content-length: {length}", *lines))
    return f"POST {PATH} HTTP/1.1\r\n{text}\r\n".encode()


async def answer_to(gateway: RunningGateway, sent: bytes) -> tuple[int, dict[str, Any]]:
    """What comes for bytes that may be no whole request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    lines, _, body = answer.partition(b"\r\n\r\n")
    return int(lines.split()[1]), json.loads(body)["error"]


# --- size -------------------------------------------------------------------------------------------------------------


async def test_a_body_of_text_has_a_smaller_limit_than_one_with_an_image(tmp_path: Path) -> None:
    """And reading stops there: the rest is not waited for."""
    async with limited(tmp_path, maxTextBodyBytes=20_000, maxBodyBytes=60_000) as gateway:
        status, error = await answer_to(gateway, head(50_000) + b'{"model":"tiny","prompt":"' + b"a" * 20_000)
        assert (status, error["code"]) == (413, "body-too-large")
        assert "20000 bytes" in error["message"]
        assert "limits.maxTextBodyBytes" in error["message"]
        url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
        chat = {"model": "tiny", "messages": [{"role": "user", "content": [url]}]}
        [answer] = await raw_exchange(gateway.port, post("/v1/chat/completions", chat, ENDS))
        assert answer.status == 200
        status, error = await answer_to(gateway, head(60_001))
        assert (status, "limits.maxBodyBytes" in error["message"]) == (413, True)
        assert held(gateway) == 0


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.rotating(3)
@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        ({"requestTimeoutS": 0.6, "minBodyBytesPerS": 1000}, "minBodyBytesPerS"),
        ({"requestTimeoutS": 30.0, "bodyTimeoutS": 0.6}, "bodyTimeoutS"),
        ({"requestTimeoutS": 0.6, "minBodyBytesPerS": 0, "bodyTimeoutS": 2.0}, "bodyTimeoutS"),
    ],
    ids=["a rate", "a total", "a total without a rate"],
)
async def test_a_body_that_trickles_ends_however_regularly_a_byte_comes(
    tmp_path: Path, limits: dict[str, float], setting: str
) -> None:
    """One byte each five seconds held 40 bodies of 8 MiB without end."""
    async with limited(tmp_path, **limits) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(100_000) + b'{"model":"tiny","prompt":"' + b"a" * 1_000)
        answer = asyncio.create_task(reader.read())
        async with asyncio.timeout(60):
            while not answer.done():
                writer.write(b"a")
                await asyncio.wait([answer], timeout=0.05)
        assert b" 408 " in answer.result()[:20]
        assert setting.encode() in answer.result()
        writer.close()
        await until(lambda: held(gateway) == 0)


@pytest.mark.rotating(3)
async def test_a_slow_but_steady_body_is_served(tmp_path: Path) -> None:
    async with limited(tmp_path, requestTimeoutS=1.0, minBodyBytesPerS=200) as gateway:
        body = json.dumps({**BODY, "prompt": "a" * 4_000}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(len(body), ENDS))
        for start in range(0, len(body), 200):
            writer.write(body[start : start + 200])
            await asyncio.sleep(0.1)
        assert b" 200 " in (await asyncio.wait_for(reader.read(), 60))[:20]
        writer.close()


# --- shares -----------------------------------------------------------------------------------------------------------


async def test_a_client_with_its_share_of_memory_waits_and_others_do_not(tmp_path: Path) -> None:
    """Told apart by address behind a trusted proxy, and by API key."""
    async with limited(tmp_path, maxClientBodiesBytes=100_000, trustedHops=1) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            head(95_000, "x-forwarded-for: 6.6.6.6, 10.0.0.1", "authorization: Bearer k") + b"{" + b" " * 90_000
        )
        await until(lambda: held(gateway) > 90_000)
        body = {**BODY, "prompt": "a" * 5_000}
        for line in ("x-forwarded-for: 10.0.0.1", "authorization: Bearer k"):
            [answer] = await raw_exchange(gateway.port, post(PATH, body, ENDS, line))
            assert answer.status == 429
            assert answer.headers["retry-after"] == "1"
            error = assert_openai_error(answer)
            assert error["code"] == "client-limit"
            assert "limits.maxClientBodiesBytes" in error["message"]
        others = ("x-forwarded-for: 10.0.0.1, 10.0.0.2", "authorization: Bearer other")
        [answer] = await raw_exchange(gateway.port, post(PATH, body, ENDS, *others))
        assert answer.status == 200
        writer.close()
        await until(lambda: held(gateway) == 0)
        [answer] = await raw_exchange(gateway.port, post(PATH, body, ENDS, "authorization: Bearer k"))
        assert answer.status == 200
        await reader.read()


async def test_invented_keys_do_not_add_to_the_share_of_an_address(tmp_path: Path) -> None:
    async with limited(tmp_path, maxClientBodiesBytes=100_000) as gateway:
        writers = []
        for number in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(head(31_000, f"authorization: Bearer {number}") + b"{" + b" " * 30_000)
            writers.append(writer)
        await until(lambda: held(gateway) > 90_000)
        status, error = await answer_to(gateway, head(31_000, "authorization: Bearer new") + b"{" + b" " * 20_000)
        assert (status, error["code"]) == (429, "client-limit")
        for writer in writers:
            writer.close()
        await until(lambda: held(gateway) == 0)


async def test_all_bodies_together_have_a_bound(tmp_path: Path) -> None:
    """And what does not fit is refused by its announced length."""
    async with limited(tmp_path, maxBodiesBytes=100_000) as gateway:
        status, error = await answer_to(gateway, head(200_000) + b"{")
        assert (status, error["code"]) == (503, "bodies-full")
        assert "limits.maxBodiesBytes" in error["message"]
        hollow = b'{"model":"tiny","prompt":"a","x":[' + b"[]," * 2_000 + b"0]}"
        [answer] = await raw_exchange(gateway.port, post(PATH, hollow, ENDS))
        assert answer.status == 503  # 6 kB of body, some 400 kB of lists
        [answer] = await raw_exchange(gateway.port, post(PATH, BODY, ENDS))
        assert answer.status == 200
        assert held(gateway) == 0
        assert [each["outcome"] for each in gateway.requests()] == ["rejected", "rejected", "completed"]


async def test_an_address_has_so_many_connections(tmp_path: Path) -> None:
    async with limited(tmp_path, maxClientConnections=2) as gateway:
        opened = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(2)]
        status, error = await answer_to(gateway, b"")
        assert (status, error["code"]) == (429, "client-limit")
        opened[0][1].close()
        await until(lambda: len(gateway.gateway.proxy.connections) == 1)  # type: ignore[union-attr]
        [answer] = await raw_exchange(gateway.port, post(PATH, BODY, ENDS))
        assert answer.status == 200
        opened[1][1].close()


def test_books_are_empty_when_all_is_over() -> None:
    clients = Clients(most_bytes=10, most_client_bytes=8, most_client_connections=1, tenant_of=lambda headers: "t")
    assert clients.connect("a") is None
    assert clients.connect("a") is not None
    one, two = clients.hold(("a", "t")), clients.hold(("b", "t"))
    assert one.set(8) is None
    assert two.set(1) is not None
    assert (one.bytes, two.bytes, clients.held_bytes) == (8, 0, 8)
    assert one.set(0) is None
    clients.disconnect("a")
    clients.disconnect("a")
    assert (clients.held_bytes, clients._bytes, clients._connections) == (0, {}, {})


# --- off the loop -----------------------------------------------------------------------------------------------------


async def test_others_are_served_while_a_large_body_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(tmp_path) as gateway:
        face = gateway.gateway.proxy
        assert face is not None
        begun, go_on, read = threading.Event(), threading.Event(), face._read_large

        def slowly(path: bytes, body: bytes) -> Any:
            begun.set()
            go_on.wait(60)
            return read(path, body)

        monkeypatch.setattr(face, "_read_large", slowly)
        large = asyncio.create_task(raw_exchange(gateway.port, post(PATH, LARGE, ENDS)))
        await until(begun.is_set)
        [answer] = await raw_exchange(gateway.port, post(PATH, BODY, ENDS))
        assert (answer.status, large.done()) == (200, False)
        go_on.set()
        [answer] = await large
        assert answer.status == 200
        assert held(gateway) == 0


async def test_a_client_that_leaves_while_its_body_is_read_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path) as gateway:
        face = gateway.gateway.proxy
        assert face is not None
        go_on, read = threading.Event(), face._read_large
        monkeypatch.setattr(face, "_read_large", lambda *given: (go_on.wait(60), read(*given))[1])
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(post(PATH, LARGE))
        await until(lambda: held(gateway) > 2 * INLINE_BYTES)
        writer.close()
        await until(lambda: len(gateway.requests()) == 1)
        go_on.set()
        assert (gateway.request()["outcome"], held(gateway), face.in_flight) == ("cancelled", 0, 0)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model":"tiny","model":"tiny-alias","prompt":"' + b"a" * 2 * INLINE_BYTES + b'"}', 400),
        (b'{"model":"other","prompt":"' + b"a" * 2 * INLINE_BYTES + b'"}', 404),
        (b'{"model":"tiny","prompt":"a","x":[' + b"[]," * 1_000_000 + b"0]}", 400),
    ],
    ids=["doubled", "unknown model", "hollow"],
)
async def test_a_large_body_is_refused_as_a_small_one_is(tmp_path: Path, body: bytes, status: int) -> None:
    async with limited(tmp_path) as gateway:
        [answer] = await raw_exchange(gateway.port, post(PATH, body, ENDS))
        assert answer.status == status
        assert_openai_error(answer)
        assert held(gateway) == 0


async def test_clients_take_turns_on_the_thread() -> None:
    """Ten bodies of one client do not come before the first one of another."""
    loop = asyncio.get_running_loop()
    bodies: LargeBodies[str] = LargeBodies(loop)
    first, order, over = threading.Event(), [], asyncio.Event()

    def done(outcome: asyncio.Future[str]) -> None:
        order.append(outcome.result())
        if len(order) == 6:
            over.set()

    bodies.read("greedy", lambda: (first.wait(60), "g0")[1], done)
    for number in range(1, 4):
        bodies.read("greedy", lambda number=number: f"g{number}", done)  # type: ignore[misc]
    dropped = bodies.read("greedy", lambda: "dropped", done)
    dropped.dropped = True
    for number in range(2):
        bodies.read("other", lambda number=number: f"o{number}", done)  # type: ignore[misc]
    first.set()
    await asyncio.wait_for(over.wait(), 60)
    assert order == ["g0", "g1", "o0", "g2", "o1", "g3"]
    bodies.close()
