"""Why a leg failed: told to the Director, and counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_core.directing.settings import SettingsChanged
from ballast_core.model import Endpoint, EndpointId, Fault, Role
from ballast_core.model.events import DispatchFailed, EndpointObserved, Event, RequestEnded
from ballast_gateway.http.client import UpstreamError, UpstreamPool
from tests.gateway.test_proxy_legs import COMPLETION, PATH, STREAM, Fleet, Writer, answers, hang_up
from tests.support.gateway_kit import RunningGateway, post, raw_exchange
from tests.support.scripted_engine import (
    SSE_HEAD,
    Asked,
    Script,
    chunk,
    decode_script,
    json_reply,
    prefill_script,
    sse_events,
)


def heard(gateway: RunningGateway) -> list[Event]:
    """Every event that the Director is told from now on."""
    events: list[Event] = []
    director = gateway.gateway.driver.director
    on_event = director.on_event

    def listening(event: Event | SettingsChanged, now_s: float) -> Any:
        if not isinstance(event, SettingsChanged):
            events.append(event)
        return on_event(event, now_s)

    director.on_event = listening  # type: ignore[method-assign]
    return events


async def busy(asked: Asked, writer: Writer) -> None:
    writer.write(json_reply({"error": {}}, 503).replace(b"\r\n\r\n", b"\r\nretry-after: 1\r\n\r\n", 1))


async def full(asked: Asked, writer: Writer) -> None:
    error = {"message": "The engine is currently busy", "type": "Service Unavailable", "param": None, "code": 503}
    writer.write(json_reply({"error": error}, 503))


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (hang_up, Fault.BROKE),
        (answers(500), Fault.ERROR),
        (answers(503), Fault.ERROR),
        (busy, Fault.BUSY),
        (full, Fault.BUSY),
    ],
    ids=["reset", "500", "503", "503-with-retry-after", "503-of-vllm"],
)
async def test_a_failed_leg_is_reported_with_its_fault(tmp_path: Path, script: Script, fault: Fault) -> None:
    """The endpoint that serves it in the end makes it a success for the client."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=script, f1=decode_script)
        events = heard(gateway)
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM), answers=1)
        assert answer.status == 200
        assert [event.fault for event in events if isinstance(event, DispatchFailed)] == [fault]
        async with httpx.AsyncClient(trust_env=False) as client:
            page = (await client.get(f"{gateway.admin_url}/metrics")).text
        assert f'ballast_gateway_failed_legs_total{{fault="{fault}"}} 1.0' in page


async def test_no_connection_is_another_fault_than_a_broken_one(tmp_path: Path) -> None:
    """The request was not sent."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f1=decode_script)
        events = heard(gateway)
        nobody = Endpoint(EndpointId("f0"), "127.0.0.1:1", Role.FLEXIBLE)
        gateway.gateway.driver.feed(EndpointObserved(nobody))
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM), answers=1)
        assert answer.status == 200
        assert [event.fault for event in events if isinstance(event, DispatchFailed)] == [Fault.UNREACHABLE]


async def test_a_stream_that_cannot_go_on_ends_with_its_engines_fault(tmp_path: Path) -> None:
    """Its events have no token ids, so no other engine could go on."""

    async def breaks(asked: Asked, writer: Writer) -> None:
        writer.write(SSE_HEAD + chunk(sse_events(["a", "b"])[0]))
        await asyncio.sleep(0.01)
        writer.transport.abort()

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=breaks)
        events = heard(gateway)
        await raw_exchange(gateway.port, post(PATH, STREAM))
        assert [event.fault for event in events if isinstance(event, RequestEnded)] == [Fault.BROKE]


ERROR_EVENT = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
ROLE = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
UNHELD = {**STREAM, "n": 2}
"""A request that no second engine can go on with, so its bytes are passed as they come."""


def sends(*parts: bytes) -> Script:
    """A stream of these parts, with a proper end."""

    async def script(asked: Asked, writer: Writer) -> None:
        writer.write(SSE_HEAD)
        for part in parts:
            writer.write(chunk(part))
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")

    return script


@pytest.mark.parametrize("body", [STREAM, UNHELD], ids=["held", "passed"])
@pytest.mark.parametrize(
    "parts",
    [
        (ERROR_EVENT, DONE),
        (ERROR_EVENT[:9], ERROR_EVENT[9:], DONE),
        (ERROR_EVENT + DONE,),
        (b": hello\n\n", ERROR_EVENT, DONE),
        (DONE,),
        (),
    ],
    ids=["error", "error in two reads", "error and end in one", "after a comment", "only the end", "nothing"],
)
async def test_a_stream_that_begins_with_an_error_is_begun_elsewhere(
    tmp_path: Path, parts: tuple[bytes, ...], body: dict[str, Any]
) -> None:
    """The status was 200, and the client sees nothing of it. Nothing is booked as completed without a token."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=sends(*parts), f1=decode_script)
        events = heard(gateway)
        (answer,) = await raw_exchange(gateway.port, post(PATH, body), answers=1)
        assert answer.status == 200
        assert b"error" not in answer.body
        assert [event.fault for event in events if isinstance(event, DispatchFailed)] == [Fault.BROKE]
        line = gateway.request()
        assert (line["outcome"], line["decode"], line["output_tokens"]) == ("completed", "f1", 3)


async def test_a_chat_whose_role_is_followed_by_an_error_is_begun_elsewhere(tmp_path: Path) -> None:
    """The role is no token: it is held back until one comes."""
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": True, "n": 2}
    good = b'data: {"id":"d","choices":[{"index":0,"delta":{"content":"fine"}}]}\n\n'
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=sends(ROLE, ERROR_EVENT, DONE), f1=sends(ROLE, good, DONE))
        (answer,) = await raw_exchange(gateway.port, post("/v1/chat/completions", chat), answers=1)
        assert answer.body == ROLE + good + DONE
        assert gateway.request()["outcome"] == "completed"


async def test_an_error_after_tokens_that_cannot_go_on_breaks_the_stream(tmp_path: Path) -> None:
    """It fails with the gateway's own event, and is not booked as completed."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=sends(*sse_events(["a", "b"])[:2], ERROR_EVENT, DONE))
        events = heard(gateway)
        answers_ = await raw_exchange(gateway.port, post(PATH, UNHELD))
        assert b"upstream-broke" in answers_[0].body
        assert b"EngineCore" not in answers_[0].body
        assert [event.fault for event in events if isinstance(event, RequestEnded)] == [Fault.BROKE]
        assert gateway.request()["outcome"] == "failed"


@pytest.mark.parametrize("error", [{"error": {"message": "no", "code": 500}}, {"object": "error", "message": "no"}])
@pytest.mark.parametrize("name", ["p0", "d0"])
async def test_a_whole_answer_with_an_error_in_its_body_has_failed(
    tmp_path: Path, error: dict[str, Any], name: str
) -> None:
    """Of a decode, and of a prefill."""
    bad = answers(200, error)
    scripts = {"p0": prefill_script, "p1": prefill_script, "d0": decode_script, "d1": decode_script, name: bad}
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(**scripts)
        events = heard(gateway)
        (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
        assert answer.status == 200
        assert answer.json()["choices"]
        failed = [event for event in events if isinstance(event, DispatchFailed)]
        assert [(event.endpoint_id, event.fault) for event in failed] == [(name, Fault.BROKE)]


async def test_an_engine_that_dies_of_a_request_on_a_pooled_connection_broke_off() -> None:
    """The connection closes without a byte, and there is no new one: it was not merely an old connection."""
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while await reader.readuntil(b"\r\n\r\n"):
            asked += 1
            if asked == 2:
                server.close()
                writer.transport.abort()
                return
            writer.write(json_reply({}))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    pool = UpstreamPool(asyncio.get_running_loop(), connect_timeout_s=5.0)
    assert (await pool.get(address, "/", timeout_s=5.0, limit_bytes=1024)).status == 200
    with pytest.raises(UpstreamError) as broke:
        await pool.get(address, "/", timeout_s=5.0, limit_bytes=1024)
    assert broke.value.fault is Fault.BROKE
    with pytest.raises(UpstreamError) as refused:
        await pool.get(address, "/", timeout_s=5.0, limit_bytes=1024)
    assert refused.value.fault is Fault.UNREACHABLE
    pool.close()
