"""A picker behind a real Envoy is killed, hangs or is restarted: what becomes of requests, by mode and event?

40 streams and 20 whole answers run when it happens, and 60 more come in the three seconds after it. Modes say what
Envoy shows to pickers of a response (docs/picker.md); `hardened` are retries, health checks, PINGs and outlier
detection as recommended there. Needs Envoy: `make envoy`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import replace

from bench.reliability.kit.asking import Ask, ask
from bench.reliability.kit.client import Outcome, at_rate
from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally
from tests.support.envoy import EnvoySetup, PickerAt, envoy

RUNNING, NEW = 60, 60
DUPLEX = EnvoySetup()
HEADERS = EnvoySetup(response_body="NONE", trailers=False)
OPEN = EnvoySetup(request_body="BUFFERED", response_body="NONE", fail_open=True)
NOTHING = DUPLEX.without_response()
MODES = {
    "full duplex": DUPLEX,
    "full duplex, hardened": replace(DUPLEX, survives=True),
    "response headers, hardened": replace(HEADERS, survives=True),
    "buffered, headers and trailers, fail open, hardened": replace(OPEN, survives=True),
    "no response": NOTHING,
    "no response, hardened": replace(NOTHING, survives=True),
}
EVENTS = {
    "one of two killed": (2, signal.SIGKILL),
    "one of two hung": (2, signal.SIGSTOP),
    "one of two restarted": (2, signal.SIGTERM),
    "the only one killed": (1, signal.SIGKILL),
    "the only one hung": (1, signal.SIGSTOP),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones."""
    parser.add_argument("--bound", type=float, default=15.0, help="seconds after which a request counts as stuck")


async def run(lab: Lab) -> list[Row]:
    """Two rows for each mode and event: those that ran, and those that came."""
    await lab.start_engines("f0", "f1", "f2")
    rows: list[Row] = []
    for mode, setup in MODES.items():
        for event, (pickers, number) in EVENTS.items():
            case = f"{mode}: {event}"
            if lab.options.only in case:
                rows += await _case(lab, case, setup, pickers, number)
    return rows


async def _case(lab: Lab, case: str, setup: EnvoySetup, pickers: int, number: signal.Signals) -> list[Row]:
    bound_s = lab.options.bound
    async with AsyncExitStack() as stack:
        running: list[GatewayProcess] = [
            await stack.enter_async_context(lab.gateway(f"picker-{n}", {"face": "Picker"})) for n in range(pickers)
        ]
        at = [PickerAt(picker.ports["ext_proc"], picker.ports["grpc_health"]) for picker in running]
        folder = running[0].program.log.parent / "envoy"
        proxy = await stack.enter_async_context(envoy(at, setup, folder))
        port = int(proxy.url.rpartition(":")[2])
        await asyncio.sleep(1.0)  # the first health check
        before = asyncio.create_task(at_rate(port, _asks(RUNNING, lab.options.seed), 120.0, bound_s=bound_s))
        await asyncio.sleep(1.5)
        hit_s = asyncio.get_running_loop().time()
        running[0].program.signal(number)
        new: list[Outcome] = await at_rate(
            port, _asks(NEW, lab.options.seed + 1, output_tokens=5), 20.0, bound_s=bound_s, name="new"
        )
        slowest_s = max((each.ended_s - each.asked_s for each in new), default=0.0)
        return [
            tally(f"{case}, in flight", await before, hit_s=hit_s),
            tally(f"{case}, new", new, notes={"slowest_s": round(slowest_s, 2)}),
        ]


def _asks(count: int, seed: int, output_tokens: int = 120) -> list[Ask]:
    return [
        ask(number, prompt_tokens=100, output_tokens=output_tokens, stream=number % 3 != 0, seed=seed)
        for number in range(count)
    ]
