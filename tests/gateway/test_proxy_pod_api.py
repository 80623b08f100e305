"""A gateway with the proxy face holds streams, and takes orders about them as an agent does (docs/pod-api.md)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from ballast_gateway.app import Gateway
from ballast_gateway.podapi import messages
from ballast_gateway.podapi.messages import Began, CancelOrder, Ended, LeaveOrder, Moved, MoveOrder, Opened
from tests.gateway.test_agent_engine_sim import SLOW, Fleet, ids_of, stream
from tests.support.pod_api_calls import call, listening, order
from tests.support.view_kit import ViewFleet

POLICY = {"decode": {"type": "round-robin"}, "rescheduling": {"type": "ares"}}


@asynccontextmanager
async def proxy(folder: Path) -> AsyncIterator[tuple[Gateway, Fleet]]:
    """In front of one prefill and two decode engines."""
    async with Fleet(folder) as engines:
        await engines.start("p0", "d0", "d1", options=SLOW)
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in engines.engines.items()}
        fleet = ViewFleet(folder, addresses, {})
        try:
            yield await fleet.start(face="Proxy", policy=POLICY), engines
        finally:
            await fleet.close()


@pytest.mark.rotating(4)
async def test_a_stream_is_told_of_and_moved_by_order(tmp_path: Path) -> None:
    """It has the tokens of an unmoved one; the state has its place and how much is expected of it."""
    async with proxy(tmp_path) as (gateway, engines), listening(gateway.ports["pod_api"]) as (snapshot, lines):
        pod_api = gateway.ports["pod_api"]
        assert (snapshot.holds, snapshot.requests) == ("gateway", ())
        asking = asyncio.create_task(ids_of(gateway.ports["proxy"], stream(300)))
        opened = await lines.until(Opened)
        assert isinstance(opened, Opened)
        row = opened.request
        await lines.until(Began)
        target = "d1" if row.decode == "d0" else "d0"
        for wrong in ("nowhere", "p0"):
            assert (await order(pod_api, messages.MIGRATIONS, MoveOrder(row.id, wrong))).status == 422
        assert (await order(pod_api, messages.MIGRATIONS, MoveOrder("other", target))).status == 404
        assert (await order(pod_api, messages.LEAVE, LeaveOrder(row.id, target))).status == 409
        assert (await order(pod_api, messages.MIGRATIONS, MoveOrder(row.id, target, row.by))).status == 202
        assert (await order(pod_api, messages.MIGRATIONS, MoveOrder(row.id, target))).status == 409
        moved = await lines.until(Moved)
        assert isinstance(moved, Moved)
        assert (moved.key, moved.target) == (row.key, target)
        (held,) = json.loads((await call(pod_api, "GET", messages.STATE)).body)["requests"]
        assert (held["id"], held["decode"], held["phase"]) == (row.id, target, "decoding")
        assert held["predicted_remaining_tokens"] > 0
        ids, _ = await asking
        assert ids == await engines.alone("d1", stream(300))
        ended = await lines.until(Ended)
        assert isinstance(ended, Ended)
        assert (ended.outcome, ended.output_tokens) == ("completed", 300)


async def test_a_stream_is_cancelled_by_order(tmp_path: Path) -> None:
    """Its client is told, and its engine is left."""
    async with proxy(tmp_path) as (gateway, _), listening(gateway.ports["pod_api"]) as (_, lines):
        rest: list[str] = []
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            url, headers = f"http://127.0.0.1:{gateway.ports['proxy']}/v1/completions", {"x-request-id": "stopped"}
            async with client.stream("POST", url, json=stream(300), headers=headers) as streaming:
                parts = streaming.aiter_lines()
                await anext(parts)
                assert (await order(gateway.ports["pod_api"], messages.CANCEL, CancelOrder("stopped"))).status == 202
                with suppress(httpx.RemoteProtocolError):  # no last chunk: it is broken off
                    rest.extend([line async for line in parts])
        ended = await lines.until(Ended)
        assert isinstance(ended, Ended)
        assert ended.outcome == "cancelled"
        assert not len(gateway.driver.director.ledger)
        assert "[DONE]" not in "".join(rest)
