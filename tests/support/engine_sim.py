"""Real engine-sims on free ports, in the test's own event loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine import EngineEvent
from ballast_sim.engine_sim.misbehave.control import PATH
from ballast_sim.engine_sim.options import KvTransfer, ServerOptions, parse_options
from ballast_sim.engine_sim.server import EngineSimServer
from ballast_sim.engine_sim.service import Clock

FAST = HardwareProfile(
    name="fast",
    overhead_ms=1.0,
    a_ms=2.0,
    d_ms_per_token=0.01,
    k_ms_per_kv_token=1e-5,
    s_ms_per_pair=1e-7,
    b_ms_per_seq=0.01,
    kv_tokens=16_384,
    kv_bytes_per_token=1024,
    max_num_seqs=64,
)
"""A small engine whose steps last about 3 ms."""

TINY = replace(FAST, name="tiny", kv_tokens=1024)


@asynccontextmanager
async def engine_sim(
    *,
    profile: HardwareProfile = FAST,
    role: KvTransfer | None = None,
    clock: Clock | None = None,
    observe: Callable[[EngineEvent], None] | None = None,
    host: str = "127.0.0.1",
    **options: Any,
) -> AsyncIterator[tuple[EngineSimServer, httpx.AsyncClient]]:
    """A server named `m` and a client for it."""
    settings = ServerOptions(model="m", profile=profile, host=host, port=0, kv_transfer=role, **options)
    server = EngineSimServer(settings, clock, observe)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://{host}:{server.port}", timeout=20.0, trust_env=False) as client:
            yield server, client
    finally:
        await server.stop()


@asynccontextmanager
async def tiny_engine(role: str, *arguments: str, **extra: Any) -> AsyncIterator[EngineSimServer]:
    """As `ballast engine-sim serve` starts one: a model `tiny`, and a connector of this role (`kv_producer`,
    `kv_consumer`, `kv_both`) with `extra` in its extra config."""
    transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_connector_extra_config": extra}
    options, _ = parse_options(
        [
            *("model", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "0"),
            *("--profile", "h200-llama3-8b", "--kv-transfer-config", json.dumps(transfer)),
            *arguments,
        ],
        {"VLLM_NIXL_SIDE_CHANNEL_PORT": "0"},
    )
    server = EngineSimServer(options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def misbehave(server: EngineSimServer, *faults: dict[str, Any]) -> dict[str, Any]:
    """Switch these faults on and all others off; the state. The server needs `misbehave_api=("127.0.0.1", 0)`."""
    async with httpx.AsyncClient(timeout=20.0, trust_env=False) as client:
        answer = await client.post(f"http://127.0.0.1:{server.control_port}{PATH}", json=list(faults))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def metric(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    """The value of one sample of `/metrics`, as prometheus_client reads it."""
    from prometheus_client.parser import text_string_to_metric_families

    text = (await client.get("/metrics")).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"{name} {labels} is not in /metrics")


async def eventually(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    """Wait until an async condition holds."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - the other side is a process or a socket
            await asyncio.sleep(0.005)
