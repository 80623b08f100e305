"""A fleet that stops when nobody uses it, whether or not it is held to an objective."""

from __future__ import annotations

from typing import Any

from tests.support.scaled_fleet import Fleet, autoscaled

TO_ZERO = {"ratio": {"mode": "Auto", "scaleToZeroAfterS": 300}}
NOBODY = {"prefill": 0, "decode": 0}


def idle(**spec: Any) -> Fleet:
    """A fleet that nobody has used for long, with a gateway that says so."""
    pools = [autoscaled("prefill", "Prefill", 0), autoscaled("decode", "Decode", 0)]
    fleet = Fleet(pools=pools, spec={**TO_ZERO, **spec}, rate_rps=0.0)
    fleet.lengths = {"idle_since_unix_s": fleet.now_s}
    fleet.round(25)
    return fleet


def test_a_fleet_at_zero_whose_objective_is_taken_away_wakes_for_a_request_and_not_before() -> None:
    fleet = idle()
    assert (fleet.counts(), fleet.said["reason"]) == (NOBODY, "ScaledToZero")
    fleet.edit(sloRef=None)
    fleet.look()
    fleet.round(3)
    assert (fleet.counts(), fleet.said["reason"]) == (NOBODY, "ScaledToZero")
    fleet.lengths = {"idle_since_unix_s": None, "waiting": 1, "waiting_tokens": 100}
    fleet.round(1)
    assert (fleet.counts(), fleet.said["reason"]) == ({"prefill": 1, "decode": 1}, "Woken")


def test_a_fleet_without_an_objective_stops_too() -> None:
    fleet = idle(sloRef=None)
    fleet.lengths = {"idle_since_unix_s": None}
    fleet.round(2)
    assert fleet.counts() == {"prefill": 1, "decode": 1}
    assert fleet.active() == ("False", "NoObjective")
    fleet.lengths = {"idle_since_unix_s": fleet.now_s - 300.0}
    fleet.round(3)
    assert (fleet.counts(), fleet.said["reason"]) == (NOBODY, "ScaledToZero")
