"""Why a leg failed: told to the Director, and counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_core.model import Endpoint, EndpointId, Fault, Role
from ballast_core.model.events import DispatchFailed, EndpointObserved, Event, RequestEnded
from tests.gateway.test_proxy_legs import PATH, STREAM, Fleet, Writer, answers, hang_up
from tests.support.gateway_kit import RunningGateway, post, raw_exchange
from tests.support.scripted_engine import SSE_HEAD, Asked, Script, chunk, decode_script, json_reply, sse_events


def heard(gateway: RunningGateway) -> list[Event]:
    """Every event that the Director is told from now on."""
    events: list[Event] = []
    director = gateway.gateway.driver.director
    on_event = director.on_event

    def listening(event: Event, now_s: float) -> Any:
        events.append(event)
        return on_event(event, now_s)

    director.on_event = listening  # type: ignore[method-assign]
    return events


async def busy(asked: Asked, writer: Writer) -> None:
    writer.write(json_reply({"error": {}}, 503).replace(b"\r\n\r\n", b"\r\nretry-after: 1\r\n\r\n", 1))


@pytest.mark.parametrize(
    ("script", "fault"),
    [(hang_up, Fault.BROKE), (answers(500), Fault.ERROR), (answers(503), Fault.ERROR), (busy, Fault.BUSY)],
    ids=["reset", "500", "503", "503-with-retry-after"],
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
