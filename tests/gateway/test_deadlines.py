"""Deadlines of requests: by header and by setting, before and after the first byte, and in the gateway's queue."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ballast_gateway.proxy.large_bodies import INLINE_BYTES
from tests.support.gateway_kit import RunningGateway, assert_openai_error, post, raw_exchange, running_gateway
from tests.support.scripted_engine import (
    SSE_HEAD,
    Asked,
    chunk,
    decode_script,
    prefill_script,
    scripted_engine,
    sse_events,
)

PATH = "/v1/completions"
WHOLE = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
STREAM = WHOLE | {"stream": True}
SOON = "x-envoy-expected-rq-timeout-ms: 300"


async def never(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """The engine says nothing."""
    await asyncio.Event().wait()


async def one_event(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """One event, and nothing more."""
    writer.write(SSE_HEAD + chunk(sse_events(["a"])[0]))
    await asyncio.Event().wait()


def assert_over(gateway: RunningGateway) -> None:
    """Nothing of the request is left, and it is booked as what it is."""
    entry = gateway.request()
    assert (entry["outcome"], entry["reason"]) == ("failed", "deadline-exceeded")
    assert gateway.gateway.proxy is not None
    assert gateway.gateway.proxy.in_flight == len(gateway.gateway.driver.director.ledger) == 0


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("hung", ["prefill", "decode"])
async def test_before_the_first_byte_the_answer_is_504(tmp_path: Path, hung: str, body: object) -> None:
    async with (
        scripted_engine(never if hung == "prefill" else prefill_script) as prefill,
        scripted_engine(never if hung == "decode" else decode_script) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
    ):
        (answer,) = await raw_exchange(gateway.port, post(PATH, body, SOON), answers=1)
        assert answer.status == 504
        assert assert_openai_error(answer)["code"] == "deadline-exceeded"
        async with asyncio.timeout(10):
            await (prefill if hung == "prefill" else decode).hung_up.wait()
        assert_over(gateway)


async def test_after_the_first_byte_the_stream_ends_with_an_error_event(tmp_path: Path) -> None:
    """It ends properly, so that the connection can go on."""
    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(one_event) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
    ):
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM, SOON), answers=1)
        assert answer.status == 200
        assert answer.whole
        events = answer.body.split(b"\n\n")
        assert b'"text": "a"' in events[0]
        assert b'"code": "deadline-exceeded"' in events[1]
        assert events[2:] == [b""]
        assert_over(gateway)


async def test_a_request_that_waits_in_the_gateway_ends_too(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}, wait=False, limits={"holdS": 300}) as gateway:
        (answer,) = await raw_exchange(gateway.port, post(PATH, WHOLE, SOON), answers=1)
        assert answer.status == 504
        assert_over(gateway)


def anothers_body(gateway: RunningGateway) -> threading.Event:
    """The thread for large bodies reads another client's until this is set."""
    assert gateway.gateway.proxy is not None
    free = threading.Event()
    gateway.gateway.proxy._large.read("another", lambda: free.wait(30), lambda _: None)  # type: ignore[arg-type,return-value]
    return free


async def test_a_body_that_waits_to_be_read_has_its_deadline_too(tmp_path: Path) -> None:
    """The time behind others' large bodies counts, and nothing is sent to an engine for a client that has given up."""
    large = WHOLE | {"prompt": "a" * (2 * INLINE_BYTES)}
    async with (
        scripted_engine(decode_script) as flexible,
        running_gateway(tmp_path, {"f0": flexible.address}) as gateway,
    ):
        assert gateway.gateway.proxy is not None
        free = anothers_body(gateway)
        (answer,) = await raw_exchange(gateway.port, post(PATH, large, SOON), answers=1)
        assert (answer.status, assert_openai_error(answer)["code"]) == (504, "deadline-exceeded")
        assert_over(gateway)
        assert gateway.gateway.proxy.clients.held_bytes == 0
        free.set()
        (answer,) = await raw_exchange(gateway.port, post(PATH, large), answers=1)
        assert answer.status == 200
        assert len(flexible.asked) == 1


@pytest.mark.rotating(3)
async def test_what_a_body_has_waited_is_taken_off(tmp_path: Path) -> None:
    """The deadline counts from the request's arrival, not from its dispatch."""
    large = STREAM | {"prompt": "a" * (2 * INLINE_BYTES)}
    async with (
        scripted_engine(never) as flexible,
        running_gateway(tmp_path, {"f0": flexible.address}) as gateway,
    ):
        loop, free = asyncio.get_running_loop(), anothers_body(gateway)
        begun_s = loop.time()
        loop.call_later(1.5, free.set)
        (answer,) = await raw_exchange(
            gateway.port, post(PATH, large, "x-envoy-expected-rq-timeout-ms: 2000"), answers=1
        )
        assert answer.status == 504
        assert len(flexible.asked) == 1
        assert loop.time() - begun_s < 1.5 + 2.0, "the wait was not taken off"


async def test_the_sooner_of_header_and_setting_holds(tmp_path: Path) -> None:
    async with (
        scripted_engine(never) as flexible,
        running_gateway(tmp_path, {"f0": flexible.address}, limits={"deadlineS": 0.3}) as gateway,
    ):
        late = "x-envoy-expected-rq-timeout-ms: 600000"
        for headers in ((), (late,)):
            (answer,) = await raw_exchange(gateway.port, post(PATH, WHOLE, *headers), answers=1)
            assert answer.status == 504
            assert "0.3 s" in answer.json()["error"]["message"]


async def test_an_answer_in_time_is_as_ever_and_engines_do_not_see_the_header(tmp_path: Path) -> None:
    async with (
        scripted_engine(decode_script) as flexible,
        running_gateway(tmp_path, {"f0": flexible.address}) as gateway,
    ):
        late = "x-envoy-expected-rq-timeout-ms: 600000"
        (answer,) = await raw_exchange(gateway.port, post(PATH, WHOLE, late), answers=1)
        assert answer.status == 200
        assert "x-envoy-expected-rq-timeout-ms" not in flexible.asked[0].headers


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1.5", "", "1e3", "9999999999"])
async def test_a_bad_value_is_the_clients_fault(tmp_path: Path, value: str) -> None:
    async with (
        scripted_engine(decode_script) as flexible,
        running_gateway(tmp_path, {"f0": flexible.address}) as gateway,
    ):
        named = f"x-envoy-expected-rq-timeout-ms: {value}"
        (answer,) = await raw_exchange(gateway.port, post(PATH, WHOLE, named), answers=1)
        assert answer.status == 400
        error = assert_openai_error(answer)
        assert error["param"] == "x-envoy-expected-rq-timeout-ms"
        assert "milliseconds" in error["message"]
        assert not flexible.asked
