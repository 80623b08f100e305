"""Two pickers behind a real Envoy, set up as docs/picker.md recommends, in front of engines of their own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.lab import Lab
from tests.support.envoy import BINARY, EnvoySetup, PickerAt, envoy

SETUP = EnvoySetup(response_body=None, survives=True)
SETTINGS = {"face": "Picker"}


@dataclass(frozen=True)
class Front:
    """Where clients reach Envoy, and the pickers behind it."""

    port: int
    pickers: list[GatewayProcess]


def there_is_envoy() -> bool:
    """Whether `make envoy` has been run; with CI set, a missing Envoy fails later."""
    return BINARY.exists() or bool(os.environ.get("CI"))


@asynccontextmanager
async def behind_envoy(lab: Lab) -> AsyncIterator[Front]:
    """Two engines, two pickers and Envoy."""
    engines = await lab.start_engines("f0", "f1")
    async with AsyncExitStack() as stack:
        pickers = [await stack.enter_async_context(lab.gateway(name, SETTINGS, engines)) for name in ("k0", "k1")]
        at = [PickerAt(each.ports["ext_proc"], each.ports["grpc_health"]) for each in pickers]
        running = await stack.enter_async_context(envoy(at, SETUP, lab.folder / "envoy"))
        yield Front(int(running.url.rpartition(":")[2]), pickers)
