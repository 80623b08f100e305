"""Runs a gateway until a signal: `ballast gateway` without its command line."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from ballast_api.gateway_settings import GatewaySettings
from ballast_gateway.app import Gateway

_log = logging.getLogger(__name__)


def run(settings: GatewaySettings) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return the exit status. A second signal cuts the drain short."""
    return uvloop.run(_run(settings))


async def _run(settings: GatewaySettings) -> int:
    loop = asyncio.get_running_loop()
    first, second = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    gateway = Gateway(settings)
    sys.setswitchinterval(0.001)  # the loop waits no longer for a thread that reads a large body
    try:
        await gateway.start()
        gc.collect()
        gc.freeze()  # what stays as long as the process is walked by no collection: a full one took 10 ms
        await _first_of(first.wait(), gateway.failed.wait())
        if gateway.failed.is_set():
            return 1
        _log.info("draining", extra={"event": "draining"})
        drain = asyncio.create_task(gateway.drain())
        await _first_of(asyncio.wait({drain}), second.wait())
        if drain.done():
            if not drain.result():
                _log.warning("requests were cut off at limits.drainTimeoutS", extra={"event": "cut-off"})
            return 0
        _log.warning("a second signal ends the drain", extra={"event": "cut-off"})
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
        await gateway.shut_down()
        return 0
    finally:
        await gateway.close()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
