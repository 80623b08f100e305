"""What an export computes from the Director's books: endpoints seen and believed, balance, what waits by class."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from ballast_core.directing.director import Director
from ballast_core.model import Observation, RequestId
from ballast_core.model.events import Event, PrefillDone, RequestArrived
from ballast_gateway.endpoint_metrics import EndpointMetrics
from ballast_gateway.observe.fleet import Fleet
from ballast_gateway.placement_metrics import PlacementMetrics
from tests.support.core_builders import director, endpoint, request


def followed(made: Director, registry: CollectorRegistry, *names: str) -> Fleet:
    """A fleet of these endpoints that the Director hears of, with metrics in the registry."""

    def feed(event: Event) -> None:
        made.on_event(event, 1.0)

    fleet = Fleet(feed, failures_until_lost=3)
    EndpointMetrics(fleet, made, registry)
    for name in names:
        fleet.ready(endpoint(name), proven=True)
    return fleet


def test_endpoints_are_shown_as_seen_and_as_believed_and_go_with_their_series() -> None:
    """Two of three requests decode on one endpoint: its step is the longest, and the balance says so."""
    made, registry = director(()), CollectorRegistry()
    fleet = followed(made, registry, "p0", "d0", "d1")
    for number, only in enumerate(("d0", "d0", "d1")):
        name = f"r{number}"
        asked = replace(request(name, prompt_tokens=8000), subset=frozenset({"p0:8000", f"{only}:8000"}))
        made.on_event(RequestArrived(asked), 1.0)
        made.on_event(PrefillDone(RequestId(name)), 1.5)
    fleet.scraped(fleet.members[endpoint("d0").id], Observation(2.0, 3, 1, 0.5, 7))

    def value(name: str, id_: str, **labels: str) -> float | None:
        labels |= {"endpoint": id_, "pool": "", "role": "prefill" if id_[0] == "p" else "decode"}
        return registry.get_sample_value(f"ballast_gateway_endpoint_{name}", labels)

    assert (value("requests", "d0", source="believed"), value("requests", "d0", source="seen")) == (2, 4)
    assert (value("waiting_requests", "d0"), value("preemptions_total", "d0")) == (1, 7)
    assert value("kv_usage_ratio", "d0", source="seen") == 0.5
    believed = [value("kv_usage_ratio", each, source="believed") for each in ("d0", "d1")]
    assert believed[0] == pytest.approx(2 * (believed[1] or 0))
    steps = [value("step_seconds", each) or 0.0 for each in ("d0", "d1")]
    assert steps[0] > steps[1] > 0
    assert value("step_seconds", "p0") is None
    largest = registry.get_sample_value("ballast_gateway_decode_step_max_to_mean_ratio")
    assert largest == pytest.approx(steps[0] / (sum(steps) / 2))
    variance = registry.get_sample_value("ballast_gateway_decode_step_seconds_variance")
    assert variance == pytest.approx(((steps[0] - steps[1]) / 2) ** 2)
    fleet.gone(endpoint("d0").id)
    assert value("requests", "d0", source="believed") is None
    assert value("requests", "d1", source="believed") == 1


def test_what_waits_is_shown_by_class_with_the_age_of_the_oldest() -> None:
    """Classes of which nothing waits are 0; a client's priority makes no series."""
    made, registry = director((), hold_s=60.0), CollectorRegistry()
    PlacementMetrics(made, registry, now_s=lambda: 10.0, objectives=lambda: ("chat", "batch"))
    for number, (objective, at_s) in enumerate((("chat", 4.0), ("chat", 7.0), ("", 9.0))):
        asked = replace(request(f"r{number}"), objective=objective, priority=number)
        made.on_event(RequestArrived(asked), at_s)

    def value(name: str, objective: str) -> float | None:
        return registry.get_sample_value(f"ballast_gateway_objective_{name}", {"objective": objective})

    assert [value("waiting_requests", each) for each in ("chat", "batch", "")] == [2, 0, 1]
    assert [value("oldest_wait_seconds", each) for each in ("chat", "batch", "")] == [6, 0, 1]
