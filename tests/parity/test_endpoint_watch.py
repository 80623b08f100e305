"""The simulated gateways' watch over endpoints tells a Director just what the real gateway's fleet tells it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ballast_core.model import Endpoint, EndpointId, Observation, Role
from ballast_core.model.events import EndpointObserved, Event
from ballast_gateway.observe.fleet import Fleet
from ballast_sim.simulation.gateways.watch import Watch

ENDPOINTS = [Endpoint(EndpointId(name), f"{name}:8000", Role.DECODE) for name in ("a", "b")]


@given(
    until_lost=st.integers(1, 4),
    news=st.lists(
        st.tuples(st.sampled_from(ENDPOINTS), st.sampled_from(["answered", "failed", "failed", "drains"])), max_size=40
    ),
)
def test_both_tell_the_same_story(until_lost: int, news: list[tuple[Endpoint, str]]) -> None:
    """Whatever comes in which order: lost after so many failures in a row, back unless it drains."""
    real: list[Event] = []
    fleet = Fleet(real.append, failures_until_lost=until_lost)
    for endpoint in ENDPOINTS:
        fleet.ready(endpoint, proven=True)
    real.clear()
    watch, simulated = Watch(until_lost), list[Event]()
    for at_s, (endpoint, what) in enumerate(news):
        member, observation = fleet.members[endpoint.id], Observation(observed_at_s=at_s, running=0, waiting=0)
        event: Event | None = None
        match what:
            case "answered":
                fleet.scraped(member, observation)
                if watch.takes(endpoint.id):
                    event = EndpointObserved(endpoint, observation)
            case "failed":
                fleet.scrape_failed(member, "refused")
                event = watch.failed(endpoint.id)
            case _:
                fleet.draining(endpoint.id)
                event = watch.drains(endpoint.id)
        simulated += [event] if event is not None else []
    assert simulated == real
