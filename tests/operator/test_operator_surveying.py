"""Gateways are asked what it takes to empty pods: real ones, and those that are silent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ballast_core.model import EndpointId
from ballast_operator.gateways.surveying import ask_loads
from ballast_operator.kinds import Manifest
from tests.support.pod_api_calls import TOKEN
from tests.support.view_kit import ViewFleet, engines


def gateway_pod(name: str, *, ready: bool = True, component: str = "gateway", **status: Any) -> Manifest:
    said = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": str(ready)}], **status}
    return {"metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}}, "status": said}


async def test_a_gateway_answers_whoever_signs_and_a_silent_one_is_named(tmp_path: Path) -> None:
    """Engines and gateways without an address are not asked; one that is not ready need not answer."""
    async with engines(("p0", "d0", "d1")) as addresses:
        fleet = ViewFleet(tmp_path, addresses, {})
        try:
            gateway = await fleet.start()
            gateway.fleet.draining(EndpointId("d0"))
            port = gateway.ports["admin"]
            pods = [gateway_pod("one"), gateway_pod("engine", component="engine"), gateway_pod("new", podIP="")]
            loads = await asyncio.to_thread(ask_loads, pods, TOKEN, admin_port=port)
            assert loads.complete
            assert {name: load.draining for name, load in loads.by_pod.items()} == {
                "p0": False,
                "d0": True,
                "d1": False,
            }
            strange = await asyncio.to_thread(ask_loads, pods, b"another token of the length", admin_port=port)
            assert not strange.complete
            assert "one: answered 401: this needs a call signed with the fleet's token" in strange.silent[0]
        finally:
            await fleet.close()
    gone = [gateway_pod("one"), gateway_pod("two", ready=False)]
    silent = await asyncio.to_thread(ask_loads, gone, TOKEN, admin_port=port)
    assert [each.split(":")[0] for each in silent.silent] == ["one"]
    assert not silent.by_pod
