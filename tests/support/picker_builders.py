"""A running picker face over endpoints of the test's choosing."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ballast_api.faces import Face
from ballast_api.gateway_settings import (
    Discovery,
    GatewaySettings,
    Keys,
    Limits,
    Listeners,
    Picker,
    Scrape,
    ServedModel,
)
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_core.directing.director import Director
from ballast_core.model import Endpoint, EndpointId, Observation, Role
from ballast_core.model.events import EndpointObserved
from ballast_gateway.driver import Driver
from ballast_gateway.keys import KeyRing
from ballast_gateway.picker import PickerServer, h2_transport, serve
from ballast_gateway.picker.face import Finished, Picked, PickerEvent, Refused
from ballast_gateway.picker.transport import Listen
from ballast_gateway.records import RequestRecord
from ballast_gateway.settings import director_settings
from ballast_gateway.tls.certificates import Tls

MODEL = "served-model"


@dataclass(slots=True)
class RunningPicker:
    """The server, its Director, and the events of the picker."""

    server: PickerServer
    driver: Driver
    endpoints: Sequence[Endpoint] = ()
    events: list[PickerEvent] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)

    @property
    def picked(self) -> list[Picked]:
        return [event for event in self.events if isinstance(event, Picked)]

    @property
    def refused(self) -> list[Refused]:
        return [event for event in self.events if isinstance(event, Refused)]

    @property
    def finished(self) -> list[Finished]:
        return [event for event in self.events if isinstance(event, Finished)]

    @property
    def in_flight(self) -> int:
        return len(self.driver.director.ledger)

    def scraped(self, endpoint: Endpoint, *, running: int = 0, waiting: int = 0) -> None:
        """As the scraper does; an hour later, so that every request is old enough to have been seen."""
        at_s = self.driver.now_s() + 3600
        observation = Observation(observed_at_s=at_s, running=running, waiting=waiting)
        self.server.observed(endpoint.id, observation)
        self.driver.feed(EndpointObserved(endpoint, observation))

    def all_idle(self) -> bool:
        """Scrape idle endpoints once; whether nothing is in flight then."""
        for endpoint in self.endpoints:
            self.scraped(endpoint)
        return self.in_flight == 0


def endpoint_at(address: str, role: Role = Role.FLEXIBLE) -> Endpoint:
    return Endpoint(EndpointId(f"{role}-{address}"), address, role)


@asynccontextmanager
async def picker(
    endpoints: Sequence[Endpoint],
    *,
    limits: Limits | None = None,
    ready: Callable[[], bool] = lambda: True,
    scrape_interval_s: float = 0.2,
    listen: Listen = h2_transport.listen,
    tls: Tls | None = None,
    fallbacks: int = 0,
    keys: str | None = None,
) -> AsyncIterator[RunningPicker]:
    """A picker on free ports of loopback, round robin over the endpoints. With `tls` it listens by itself. `keys`: a
    keys file."""
    settings = GatewaySettings(
        model=ServedModel(served_names=(MODEL,)),
        policy=SchedulingPolicySpec.parse({"prefill": {"type": "round-robin"}, "decode": {"type": "round-robin"}}),
        discovery=Discovery(file="unused.yaml"),
        limits=limits or Limits(),
        face=Face.PICKER,
        picker=Picker(fallbacks=fallbacks),
        scrape=Scrape(interval_s=scrape_interval_s),
        listeners=Listeners(host="127.0.0.1", proxy=0, ext_proc=0, grpc_health=0, admin=0),
    )
    director = Director(director_settings(settings))
    for endpoint in endpoints:
        director.on_event(EndpointObserved(endpoint), 0.0)
    driver = Driver(director)
    events: list[PickerEvent] = []
    records: list[RequestRecord] = []
    ids = itertools.count()
    server = await serve(
        driver,
        settings,
        ready=ready,
        new_id=lambda: f"made-{next(ids)}",
        listeners=(events.append,),
        on_record=records.append,
        listen=listen if tls is None else None,
        tls=tls,
        keys=None if keys is None else KeyRing(Keys(file=keys), driver.now_s),
    )
    try:
        yield RunningPicker(server, driver, endpoints, events, records)
    finally:
        await server.aclose(grace_s=0)
        driver.close()
