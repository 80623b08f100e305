"""kopf wiring: the process's start and end, its login and its health.

Only `on.startup`, `on.cleanup`, `on.login` and `on.probe` are used: kopf then reads and writes nothing on its own. What
looks read, and what wakes them, comes from our own informers (docs/adr/0032).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import kopf

from ballast_operator.controller import Controller
from ballast_operator.leading import Election, lead
from ballast_operator.settings import OperatorSettings


def registry_for(
    make_controller: Callable[[], Controller], make_election: Callable[[], Election | None] = lambda: None
) -> kopf.OperatorRegistry:
    """All handlers. Both functions are called when kopf starts: credentials are there by then. Without an election the
    controller works at once; with one what is watched waits in its queue until this process leads."""
    registry = kopf.OperatorRegistry()
    holder: list[Controller] = []
    elections: list[Election] = []
    tasks: list[asyncio.Task[None]] = []

    @kopf.on.startup(registry=registry, id="start")
    async def start(**_: Any) -> None:
        holder.append(make_controller())
        holder[0].watch()
        election = make_election()
        if election is None:
            holder[0].start()
        else:
            elections.append(election)
            tasks.append(asyncio.create_task(lead(election, holder[0].start, end)))

    async def end() -> None:
        await holder[0].stop()
        signal.raise_signal(signal.SIGTERM)  # the next process waits for the Lease

    @kopf.on.cleanup(registry=registry, id="stop")
    async def stop(**_: Any) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for controller in holder:
            await controller.stop()
        for election in elections:
            await asyncio.to_thread(election.release)

    @kopf.on.probe(registry=registry, id="workers")
    async def workers(**_: Any) -> str:
        if any(task.done() for task in tasks) or any(each.started and not each.alive() for each in holder):
            raise RuntimeError("a worker has ended")
        return "running" if all(each.started for each in holder) else "waiting for the Lease"

    kopf.on.login(registry=registry)(kopf.login_via_client)
    return registry


def kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """kopf's settings: it watches nothing, and posts no Events."""
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.peering.standalone = True
    result.scanning.disabled = True
    result.networking.request_timeout = settings.request_timeout_s
    return result
