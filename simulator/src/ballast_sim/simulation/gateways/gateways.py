"""Gateways of a simulated fleet: each has its own Director, with its own stale view of the endpoints.

A gateway learns what the others do only from scrapes. A scrape takes `scrape_delay_s` to arrive and is lost with
`scrape_loss_ratio`; the gateways scrape in turn, evenly spread over the interval. An endpoint that is down refuses a
scrape; one whose answers get lost lets it time out. This is how gateways notice failures (`watch`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, RequestId
from ballast_core.model.effects import Effect
from ballast_core.model.events import EndpointLost, EndpointObserved, EndpointsScraped, Event, ProgressBatch
from ballast_core.model.observations import Observations
from ballast_sim.simulation.gateways.watch import Watch
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.world.world import World

OBSERVE = 0  # order at one time: what is known first, then what runs, then what is new


class Gateways:
    """The Directors, and the choice of a gateway for each request."""

    def __init__(
        self,
        settings: FleetSettings,
        director_settings: DirectorSettings,
        kernel: Kernel,
        world: World,
        *,
        carry_out: Callable[[int, Sequence[Effect]], None],
        catch_up: Callable[[], None],
    ) -> None:
        """`carry_out(gateway, effects)` carries out a Director's effects.

        `catch_up()` is called before each `feed`; it reports what happened before now.
        """
        self.directors = [Director(director_settings) for _ in range(settings.gateways)]
        self._reads_kv = director_settings.reads_kv_usage
        self._settings = settings
        self._kernel = kernel
        self._world = world
        self._carry_out = carry_out
        self._catch_up = catch_up
        self._losses = random.Random(f"losses {settings.seed}")
        self._routes = random.Random(f"routes {settings.seed}")
        self._watches = [Watch(settings.failures_until_lost) for _ in self.directors]
        self._mute: set[EndpointId] = set()
        self._awaited_until_s: dict[tuple[int, EndpointId], float] = {}

    def start(self) -> None:
        """Report every endpoint to every gateway, and begin to scrape."""
        interval_s = self._settings.scrape_interval_s
        for gateway in range(len(self.directors)):
            for machine in self._world.machines:
                self.feed(gateway, EndpointObserved(machine.endpoint))
            phase_s = interval_s * gateway / len(self.directors)
            self._kernel.at(interval_s + phase_s, lambda gateway=gateway: self._scrape(gateway), OBSERVE)  # type: ignore[misc]

    def route(self) -> int:
        """The index of the gateway that gets the next request."""
        return self._routes.randrange(len(self.directors)) if len(self.directors) > 1 else 0

    def feed(self, gateway: int, event: Event) -> None:
        """Report an event that happens now to a Director, and carry out its effects."""
        self._catch_up()
        self.report(gateway, event, self._kernel.now_s)

    def progress(self, gateway: int, reports: Sequence[tuple[float, RequestId, int]]) -> None:
        """Report (time, request, output tokens); the times may lie in the past. See `ProgressBatch`."""
        self.directors[gateway].on_event(ProgressBatch(reports), self._kernel.now_s)

    def report(self, gateway: int, event: Event, at_s: float) -> None:
        """Report an event at a time that may lie in the past, and carry out the effects."""
        effects = self.directors[gateway].on_event(event, at_s)
        if effects:
            self._carry_out(gateway, effects)

    def _scrape(self, gateway: int) -> None:
        now_s = self._kernel.now_s
        answers = self._world.scrape(kv=self._reads_kv)
        if self._settings.scrape_loss_ratio or self._mute or len(answers) < len(self._world.machines):
            answers = self._heard(gateway, answers)
        if len(answers):
            self._kernel.at(now_s + self._settings.scrape_delay_s, partial(self._answered, gateway, answers), OBSERVE)
        self._kernel.at(now_s + self._settings.scrape_interval_s, lambda: self._scrape(gateway), OBSERVE)

    def _heard(self, gateway: int, answers: Observations) -> Observations:
        """The answers that do not get lost. The others' scrapes fail, or they are lost without a failure."""
        loss, rows = self._settings.scrape_loss_ratio, {one.id: row for row, one in enumerate(answers.endpoints)}
        heard = []
        for machine in self._world.machines:
            endpoint_id = machine.endpoint.id
            if loss and self._losses.random() < loss:
                continue
            if endpoint_id not in rows or endpoint_id in self._mute:
                self._scrape_fails(gateway, endpoint_id)
            else:
                heard.append(rows[endpoint_id])
        return answers.take(heard)

    def _answered(self, gateway: int, answers: Observations) -> None:
        taken = self._watches[gateway].taken(self._world.current(answers))
        self._catch_up()
        self._carry_out(gateway, self.directors[gateway].on_event(EndpointsScraped(taken), self._kernel.now_s))

    def _scrape_fails(self, gateway: int, endpoint_id: EndpointId) -> None:
        """A refused connection is known at once, silence after the timeout."""
        now_s = self._kernel.now_s
        if now_s < self._awaited_until_s.get((gateway, endpoint_id), now_s):
            return
        known_s = now_s + self._settings.scrape_delay_s
        if endpoint_id in self._mute:
            known_s = now_s + self._settings.scrape_timeout_s
            self._awaited_until_s[gateway, endpoint_id] = known_s
        failed = self._watches[gateway].failed
        self._kernel.at(known_s, lambda: self._noticed(gateway, failed(endpoint_id)), OBSERVE)

    def _noticed(self, gateway: int, event: Event | None) -> None:
        if event is not None:
            self.feed(gateway, event)

    # --- endpoints that come, change and go ---------------------------------------------------------------------------

    def tell(self, endpoint: Endpoint) -> None:
        """Discovery reports to every gateway that this endpoint is ready, in this role."""
        for gateway in range(len(self.directors)):
            self.feed(gateway, EndpointObserved(endpoint))

    def is_idle(self, endpoint_id: EndpointId) -> bool:
        """Whether no gateway has a request on this endpoint's books."""
        slots = [(director, director.inventory.slot_of(endpoint_id)) for director in self.directors]
        return all(slot is None or director.ledger.is_idle(slot) for director, slot in slots)

    def gone(self, endpoint_id: EndpointId) -> None:
        """Discovery reports to every gateway that this endpoint is gone for good."""
        for gateway in range(len(self.directors)):
            self.feed(gateway, EndpointLost(endpoint_id))

    # --- what befalls endpoints -----------------------------------------------------------------------------------

    def mute(self, endpoint_id: EndpointId) -> None:
        """From now on no scrape of this endpoint gets an answer."""
        self._mute.add(endpoint_id)

    def unmute(self, endpoint_id: EndpointId) -> None:
        """Scrapes of this endpoint get answers again."""
        self._mute.discard(endpoint_id)

    def drain(self, endpoint_id: EndpointId) -> None:
        """Discovery reports to every gateway that this endpoint drains."""
        for gateway, watch in enumerate(self._watches):
            self._noticed(gateway, watch.drains(endpoint_id))
