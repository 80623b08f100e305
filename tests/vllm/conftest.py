"""One pair of real servers for all tests of the session, and an engine-sim pair in the same roles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Literal

import httpx
import pytest

from ballast_sim.engine_sim.options import KvTransfer
from tests.support.engine_sim import engine_sim
from tests.support.real_vllm import BLOCK_SIZE, MAX_MODEL_LEN, RealVllm, prefill_and_decode

ROLES: tuple[Literal["kv_producer"], Literal["kv_consumer"]] = ("kv_producer", "kv_consumer")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealVllm, RealVllm]]:
    """Prefill and decode, real."""
    with prefill_and_decode(tmp_path_factory.mktemp("vllm")) as servers:
        yield servers


@pytest.fixture
async def pairs(
    real: tuple[RealVllm, RealVllm],
) -> AsyncIterator[dict[str, tuple[httpx.AsyncClient, httpx.AsyncClient]]]:
    """Clients of the prefill and the decode server, of the real vLLM and of engine-sim."""
    async with AsyncExitStack() as stack:
        sims: list[httpx.AsyncClient] = []
        for role in ROLES:
            sim = engine_sim(role=KvTransfer(role), block_size=BLOCK_SIZE, max_model_len=MAX_MODEL_LEN)
            sims.append((await stack.enter_async_context(sim))[1])
        reals = []
        for server in real:
            client = httpx.AsyncClient(base_url=server.url, timeout=120.0, trust_env=False)
            reals.append(await stack.enter_async_context(client))
        yield {"vllm": (reals[0], reals[1]), "engine-sim": (sims[0], sims[1])}
