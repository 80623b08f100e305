"""The route that shows and changes the misbehaviour, on a port of its own: it answers whatever the engine does."""

import json
from collections.abc import Awaitable, Callable

from ballast_sim.engine_sim.bodies import ApiError
from ballast_sim.engine_sim.http11 import Exchange, Request
from ballast_sim.engine_sim.misbehave.faults import FaultError, read_faults
from ballast_sim.engine_sim.misbehave.saboteur import Saboteur

PATH = "/engine-sim/misbehave"


class Control:
    """GET shows the state; POST with a fault or a list of them switches these on, and all others off."""

    def __init__(self, saboteur: Saboteur, spawn: Callable[[Awaitable[None]], None]) -> None:
        """`spawn` runs a coroutine in the background."""
        self._saboteur = saboteur
        self._spawn = spawn

    def handle(self, request: Request, exchange: Exchange) -> None:
        """An `http11.Handler`."""
        if request.path != PATH:
            exchange.respond(404, ApiError(f"Only {PATH} is here.", None, 404, "NotFoundError").body())
        elif request.method == "POST":
            self._post(request, exchange)
        elif request.method in ("GET", "HEAD"):
            self._show(exchange)
        else:
            exchange.respond(405, ApiError("Use GET or POST.", None, 405, "MethodNotAllowedError").body())

    def _post(self, request: Request, exchange: Exchange) -> None:
        try:
            faults = read_faults(request.body)
        except FaultError as error:
            exchange.respond(400, ApiError(str(error)).body())
            return

        async def obey() -> None:
            await self._saboteur.command(faults)
            self._show(exchange)

        self._spawn(obey())

    def _show(self, exchange: Exchange) -> None:
        exchange.respond(200, json.dumps(self._saboteur.state()).encode())
