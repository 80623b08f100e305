"""How long instances take to start, as scaling goes by it."""

from __future__ import annotations

from datetime import UTC, datetime

from ballast_operator.scaling.records import read
from tests.support.scaled_fleet import BUSY_RPS, Fleet, busy


def startup_s(fleet: Fleet) -> float | None:
    """As stored for looks, and for the gateways' Retry-After."""
    return read(fleet.decisions or {}).startup_s


def test_pods_that_are_ready_again_after_a_fault_have_not_taken_until_then_to_start() -> None:
    """A network that fails a probe of all of them, say, half an hour after they came."""
    fleet = busy()
    fleet.round(120)
    assert startup_s(fleet) == 40.0
    again = datetime.fromtimestamp(fleet.now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for pod in fleet.pods.values():
        pod["status"]["conditions"][0]["lastTransitionTime"] = again
    fleet.rate_rps = 1.5 * BUSY_RPS
    fleet.round(2)
    assert (fleet.said["reason"], startup_s(fleet)) == ("ScaledUp", 40.0)
