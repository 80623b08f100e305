"""Conditions over time.

1. `lastTransitionTime` changes when and only when `status` does.
2. `observedGeneration` is always that of the spec that was looked at.
3. The status of an unchanged world is equal to the one before: nothing is written.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_api.serving_pool import ServingPoolStatus
from ballast_operator.conditions import transitions
from ballast_operator.kinds import Manifest
from ballast_operator.status.accepted import accepted_status
from ballast_operator.status.events import event_for
from tests.support.operator_builders import (
    LATER,
    NOW,
    deployment,
    observed,
    policy,
    profile,
    profiles,
    serving_pool,
    status_of,
)


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Deployments in any state, references there or not, a spec that is valid or not."""

    def any_deployment(name: str, wanted: int) -> Manifest:
        count = st.integers(0, wanted + 1)
        return deployment(name, wanted=wanted, ready=draw(count), replicas=draw(count), updatedReplicas=draw(count))

    children = [any_deployment(name, wanted) for name, wanted in (("gateway", 1), ("prefill", 2), ("decode", 4))]
    for child, suffix in zip(children, ("gateway", "prefill", "decode"), strict=True):
        child["metadata"]["name"] = f"chat-{suffix}"
    spec: dict[str, Any] = draw(st.sampled_from([{}, {"policyRef": {"name": "x"}}, {"model": {"name": ""}}]))
    return {
        "spec": spec,
        "children": tuple(children[: draw(st.integers(0, 3))]),
        "profiles": draw(st.sampled_from([profiles(), profiles("h20")])),
        "generation": draw(st.integers(1, 3)),
    }


def status_in(world: dict[str, Any], before: Manifest | None, now: str) -> Manifest:
    pool = serving_pool(status=before, generation=world["generation"], **world["spec"])
    status = status_of(observed(pool, children=world["children"], profiles=world["profiles"], now=now))
    ServingPoolStatus.parse(status)
    return status


@given(first=worlds(), second=worlds())
def test_transition_times_move_with_the_status_only(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Invariants 1 and 2, between any two worlds."""
    before = status_in(first, None, NOW)
    after = status_in(second, before, LATER)
    known = {item["type"]: item for item in before["conditions"]}
    for item in after["conditions"]:
        old = known.get(item["type"])
        flipped = old is None or old["status"] != item["status"]
        expected = LATER if flipped else NOW
        assert expected == item["lastTransitionTime"], item["type"]
    touched = {item["type"]: item["observedGeneration"] for item in after["conditions"]}
    assert touched["Degraded"] == touched["Progressing"] == second["generation"] == after["observedGeneration"]


@given(world=worlds())
def test_an_unchanged_world_has_an_unchanged_status(world: dict[str, Any]) -> None:
    """Invariant 3."""
    before = status_in(world, None, NOW)
    assert status_in(world, before, LATER) == before
    assert transitions(before, before) == []


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        pytest.param(profile("h20"), ("True", "Accepted"), id="profile"),
        pytest.param(profile("h20", kvTokens=1), ("False", "InvalidSpec"), id="profile-without-sense"),
        pytest.param(policy(), ("True", "Accepted"), id="policy"),
        pytest.param(policy(placement="crystal-ball"), ("False", "InvalidSpec"), id="unknown-policy"),
    ],
)
def test_referred_objects_are_told_whether_they_are_accepted(manifest: Manifest, expected: tuple[str, str]) -> None:
    """Accepted, with the reason in words when it is not."""
    first = accepted_status(manifest, NOW)
    assert expected == (first["conditions"][0]["status"], first["conditions"][0]["reason"])
    assert accepted_status({**manifest, "status": first}, LATER) == first


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [("Available", "False", "Warning"), ("Available", "True", "Normal"), ("Degraded", "True", "Warning")],
)
def test_an_event_warns_of_what_is_bad(kind: str, status: str, expected: str) -> None:
    """Its namespace is the object's, `default` for cluster-scoped ones."""
    condition = {"type": kind, "status": status, "reason": "Because", "message": "m"}
    event = event_for(profile("h20"), condition, NOW)
    assert event is not None
    assert (event["type"], event["metadata"]["namespace"]) == (expected, "default")
    assert event_for(profile("h20"), {**condition, "status": "Unknown"}, NOW) is None
