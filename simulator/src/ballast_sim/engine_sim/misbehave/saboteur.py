"""What stands in front of an honest server and gives requests their faults, and the server its own."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from ballast_sim.engine_sim.door import Door
from ballast_sim.engine_sim.http11 import Exchange, Request
from ballast_sim.engine_sim.misbehave import answers
from ballast_sim.engine_sim.misbehave.choosing import Misbehaviour
from ballast_sim.engine_sim.misbehave.clock import StoppableClock
from ballast_sim.engine_sim.misbehave.exchanges import EXCHANGES
from ballast_sim.engine_sim.misbehave.facts import Facts
from ballast_sim.engine_sim.misbehave.faults import Fault, Flap, Freeze, Sigterm

F = TypeVar("F", Freeze, Flap, Sigterm)


class Victim(Protocol):
    """The honest server."""

    @property
    def door(self) -> Door: ...
    def handle(self, request: Request, exchange: Exchange) -> None: ...
    def cut_connections(self) -> None: ...
    def abort_waiting(self) -> int: ...


class Saboteur:
    """Off until `command` is given faults."""

    def __init__(self, victim: Victim, clock: StoppableClock) -> None:
        """`clock` is the one of the victim's engine."""
        self._victim = victim
        self._clock = clock
        self._misbehaviour = Misbehaviour()
        self._flapping: asyncio.Task[None] | None = None
        self._commanding = asyncio.Lock()
        self._sigterm: Sigterm | None = None
        self._terminating: Sigterm | None = None

    def handle(self, request: Request, exchange: Exchange) -> None:
        """An `http11.Handler`."""
        facts = Facts(request.path, request.body)
        if self._terminating is not None and facts.generates:
            self._misbehaviour.has_shown(self._terminating)
            _engine_is_gone(facts, exchange)
            return
        fault = self._misbehaviour.choose(facts)
        if fault is None:
            self._victim.handle(request, exchange)
            return
        faulty = EXCHANGES[type(fault)](fault, partial(self._misbehaviour.has_shown, fault), exchange)
        if not faulty.begin(facts):
            self._victim.handle(request, faulty)

    async def command(self, faults: Sequence[Fault]) -> None:
        """These faults from now on, instead of those that were; requests under way keep theirs."""
        self._misbehaviour.replace(faults)
        async with self._commanding:
            await self._change_server(faults)

    async def _change_server(self, faults: Sequence[Fault]) -> None:
        await self._stop_flapping()
        self._sigterm = _first(Sigterm, faults)
        self._freeze(_first(Freeze, faults))
        flap = _first(Flap, faults)
        if flap is None:
            await self._victim.door.open()
        else:
            self._refuse(flap)
            self._flapping = asyncio.ensure_future(self._flap(flap))

    def _freeze(self, freeze: Freeze | None) -> None:
        if freeze is None:
            self._clock.go_on()
        elif not self._clock.stopped:
            self._clock.stop()
            self._misbehaviour.has_shown(freeze)

    def _refuse(self, flap: Flap) -> None:
        self._victim.door.shut()
        self._misbehaviour.has_shown(flap)
        if flap.cut:
            self._victim.cut_connections()

    async def _flap(self, flap: Flap) -> None:
        """From the first refusal on."""
        while True:
            await asyncio.sleep(flap.down_s)
            await self._victim.door.open()
            await asyncio.sleep(flap.up_s)
            self._refuse(flap)

    async def _stop_flapping(self) -> None:
        if self._flapping is not None:
            self._flapping.cancel()
            await asyncio.gather(self._flapping, return_exceptions=True)
            self._flapping = None

    async def terminate(self) -> None:
        """The server was asked to stop: hang on for as long as a fault wants that."""
        await self._stop_flapping()
        if self._sigterm is not None:
            self._terminating = self._sigterm
            self._misbehaviour.has_shown(self._sigterm, self._victim.abort_waiting())
            await asyncio.sleep(self._sigterm.linger_s)

    def state(self) -> dict[str, Any]:
        """See `Misbehaviour.state`; with what the server is like just now."""
        now = {"frozen": self._clock.stopped, "refusing": not self._victim.door.is_open}
        return {**self._misbehaviour.state(), **now}


def _engine_is_gone(facts: Facts, exchange: Exchange) -> None:
    """An error event in place of the first token; for an answer that is no stream, a 500."""
    if facts.streams:
        exchange.start_stream()
        exchange.finish(answers.error_event(answers.ENGINE_DEAD))
    else:
        exchange.respond(500, answers.status_body(500))


def _first(kind: type[F], faults: Sequence[Fault]) -> F | None:
    return next((fault for fault in faults if isinstance(fault, kind)), None)
