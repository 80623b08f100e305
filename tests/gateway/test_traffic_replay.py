"""What a gateway recorded, simulated: the requests, their shared prefixes and what the engines' caches held of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_cli.options.trace_files import TOKEN
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.engine_sim.options import KvTransfer
from ballast_sim.load import LoadSettings, run_load
from ballast_sim.workloads import WorkloadRequest
from tests.support.engine_sim import engine_sim, metric
from tests.support.gateway_kit import running_gateway

PROFILE = "h200-qwen3-32b"
FASTER = 10
TURNS = [
    WorkloadRequest(
        arrival_s=3.0 * number,
        input_tokens=256 * (1 + number // 2) + 40,
        output_tokens=5 + number,
        hash_ids=tuple(range(1000 * (number % 2), 1000 * (number % 2) + 4 * (1 + number // 2))),
        block_size=64,
    )
    for number in range(8)
]
"""Two conversations of four turns: each prompt begins with the one before."""


async def simulate(*arguments: str) -> Any:
    """`ballast simulate` on a thread: the gateway that it asks is in this loop."""
    command = ["simulate", "--endpoints", "1P1D", "--profile", PROFILE, "--jobs", "1", "--json", "-", *arguments]
    result = await asyncio.to_thread(CliRunner().invoke, app, [*command, "--policy", "ballast"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "token").write_text("admin-token\n")
    monkeypatch.setenv(TOKEN, "admin-token")
    return str(tmp_path / "token")


@pytest.mark.rotating(3)
async def test_a_simulation_of_the_recording_hits_the_caches_as_the_engines_did(tmp_path: Path, token: str) -> None:
    """By URL, with the token of the admin API. Nothing here depends on how fast this machine is."""
    profile = SHIPPED_PROFILES[PROFILE]
    engines: dict[str, Any] = {"profile": profile, "time_scale": 1 / FASTER}
    async with (
        engine_sim(role=KvTransfer("kv_producer"), **engines) as (prefill, prefill_client),
        engine_sim(role=KvTransfer("kv_consumer"), **engines) as (decode, _),
        running_gateway(
            tmp_path,
            {"p0": f"127.0.0.1:{prefill.port}", "d0": f"127.0.0.1:{decode.port}"},
            model={"servedNames": ["m"]},
            admin={"tokenFile": token},
        ) as gateway,
    ):
        report = await run_load(LoadSettings(url=gateway.url, model="m", time_scale=1 / FASTER), TURNS)
        assert report.completed == len(TURNS), report.errors
        asked = await metric(prefill_client, "vllm:prefix_cache_queries_total")
        held = await metric(prefill_client, "vllm:prefix_cache_hits_total")
        [row] = await simulate(
            "--trace", f"{gateway.admin_url}/ballast/v1/traffic?minutes=10", "--rate-scale", f"{1 / FASTER}"
        )
    assert held > 0
    assert (row["requests"], row["completed"]) == (len(TURNS), len(TURNS))
    assert row["kv_hit_ratio"] == pytest.approx(held / asked)


async def test_a_url_that_gives_no_trace_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    async with running_gateway(tmp_path, {}, admin={"tokenFile": token}) as gateway:
        url = f"{gateway.admin_url}/ballast/v1/traffic"
        command = ["simulate", "--endpoints", "1P1D", "--profile", PROFILE, "--policy", "ballast", "--trace"]
        empty = await asyncio.to_thread(CliRunner().invoke, app, [*command, url])
        assert empty.exit_code == 2
        assert "has no rows" in empty.output
        monkeypatch.setenv(TOKEN, "wrong")
        refused = await asyncio.to_thread(CliRunner().invoke, app, [*command, url])
        assert refused.exit_code == 2
        assert "401" in refused.output
        assert TOKEN in refused.output
    gone = await asyncio.to_thread(CliRunner().invoke, app, [*command, url])
    assert gone.exit_code == 2
    assert "cannot be fetched" in gone.output
