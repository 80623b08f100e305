"""The suite against Ballast's own picker face, as a whole gateway in front of engine-sims."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ballast_conformance.verdicts import Verdict
from tests.conformance.asking import PLAN, ask, ids
from tests.support.engine_sim import engine_sim
from tests.support.gateway_kit import running_gateway

pytestmark = pytest.mark.rotating(4, each=True)

_ENDPOINTS = 3


@pytest.mark.parametrize(
    ("tls", "fallbacks", "skipped"),
    [("Optional", 0, {"destination.fallbacks", "framing.alpn"}), ("Required", 2, set())],
    ids=["plaintext", "TLS, fall-backs"],
)
async def test_our_picker_passes_every_case(tls: str, fallbacks: int, skipped: set[str], tmp_path: Path) -> None:
    """MUST, SHOULD and MAY, with fall-backs and without."""
    async with AsyncExitStack() as stack:
        servers = [(await stack.enter_async_context(engine_sim()))[0] for _ in range(_ENDPOINTS)]
        addresses = {f"f{number}": f"127.0.0.1:{server.port}" for number, server in enumerate(servers)}
        running = await stack.enter_async_context(
            running_gateway(
                tmp_path,
                addresses,
                face="Picker",
                model={"servedNames": ["m"]},
                listeners={"extProc": 0, "grpcHealth": 0},
                limits={"maxInFlight": 60},
                tls={"picker": {"mode": tls}},
                picker={"fallbacks": fallbacks},
            )
        )
        ports = running.gateway.ports
        results = await ask(
            ports["ext_proc"],
            tuple(addresses.values()),
            plan=replace(PLAN, flood=80),
            health_port=ports["grpc_health"],
        )
    assert not ids(results, Verdict.FAIL), [each for each in results if each.verdict is Verdict.FAIL]
    assert ids(results, Verdict.SKIP) == skipped
