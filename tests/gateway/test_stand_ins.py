"""All endpoints of one role gone: those of the other role serve whole requests, and the gateway says so."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_core.model import EndpointId
from tests.support.engine_sim import engine_sim, misbehave
from tests.support.gateway_kit import RunningGateway, endpoints_text, post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import Asked, decode_script, json_reply, prefill_script, scripted_engine

PATH = "/v1/completions"
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 3}


async def fallbacks(gateway: RunningGateway, missing: str) -> float:
    async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
        lines = (await admin.get("/metrics")).text.splitlines()
    name = f'ballast_gateway_fallback_dispatches_total{{missing="{missing}"}} '
    return float(next(line for line in lines if line.startswith(name)).removeprefix(name))


def changes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.__dict__["event"], record.__dict__["role"])
        for record in caplog.records
        if record.name == "ballast_gateway.stand_ins"
    ]


@pytest.mark.parametrize("missing", ["prefill", "decode"])
async def test_without_a_role_the_other_one_serves_whole_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    """The engine gets the client's own body. One line in the log when the role is gone, one when it is back."""
    caplog.set_level(logging.INFO)
    async with scripted_engine(decode_script) as serves, scripted_engine(prefill_script) as prefill:
        name = {"prefill": "d0", "decode": "p0"}[missing]
        async with running_gateway(tmp_path, {name: serves.address}) as gateway:
            for _ in range(2):
                [answer] = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
                assert answer.status == 200
            assert [asked.body["max_tokens"] for asked in serves.asked] == [3, 3]
            assert not any("kv_transfer_params" in asked.body for asked in serves.asked)
            assert [(entry.get("prefill"), entry["decode"]) for entry in gateway.requests()] == [(None, name)] * 2
            assert await fallbacks(gateway, missing) == 2
            assert changes(caplog) == [("role-gone", missing)]
            if missing == "prefill":
                addresses = {"d0": serves.address, "p0": prefill.address}
                gateway.endpoints_file.write_text(endpoints_text(addresses))
                await gateway.ready_endpoints(2)
                [answer] = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
                assert answer.status == 200
                assert len(prefill.asked) == 1
                assert changes(caplog) == [("role-gone", missing), ("role-back", missing)]


async def test_a_request_whose_only_prefill_failed_goes_on_at_a_decode(tmp_path: Path) -> None:
    """The engine is down and no scrape has shown it yet, or it comes and goes: nobody is told 503."""

    async def breaks(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def errs(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(json_reply({"error": {}}, 500))

    for script in (breaks, errs):
        async with (
            scripted_engine(script) as prefill,
            scripted_engine(decode_script) as decode,
            running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
        ):
            [answer] = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
            assert answer.status == 200
            entry = gateway.request()
            assert (entry["outcome"], entry["decode"], entry["retries"]) == ("completed", "d0", 1)
            assert await fallbacks(gateway, "prefill") == 1


@pytest.mark.rotating(3)
async def test_no_request_is_lost_while_every_prefill_comes_and_goes(tmp_path: Path) -> None:
    """Two prefills that refuse connections every other moment, and one decode."""
    flap = {"fault": "flap", "down_s": 0.3, "up_s": 0.3, "cut": True}
    async with (
        engine_sim(misbehave_api=("127.0.0.1", 0)) as (one, _),
        engine_sim(misbehave_api=("127.0.0.1", 0)) as (two, _),
        engine_sim() as (decode, _),
    ):
        for server in (one, two):
            await misbehave(server, flap)
        addresses = {f"p{n}": f"127.0.0.1:{each.port}" for n, each in enumerate((one, two))}
        addresses["d0"] = f"127.0.0.1:{decode.port}"
        more: dict[str, Any] = {"model": {"servedNames": ["m"]}, "scrape": {"intervalS": 0.05, "failuresUntilLost": 2}}
        async with running_gateway(tmp_path, addresses, wait=False, **more) as gateway:
            await until(lambda: gateway.gateway.fleet.members[EndpointId("d0")].state == "ready")
            body = {"model": "m", "prompt": [1, 2, 3, 4], "max_tokens": 8, "ignore_eos": True, "stream": True}
            for _ in range(60):
                [answer] = await raw_exchange(gateway.port, post(PATH, body), answers=1)
                assert answer.status == 200
                assert answer.whole
                await asyncio.sleep(0.03)
            assert {entry["outcome"] for entry in gateway.requests()} == {"completed"}
            assert await fallbacks(gateway, "prefill") > 0
