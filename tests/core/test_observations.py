"""Observations of many endpoints as arrays, and who reads which of them."""

from __future__ import annotations

import pytest

from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Observation, Role
from ballast_core.model.observations import Observations
from ballast_core.policies.admission import Admission, Bounded, Open
from ballast_core.policies.registry import build_placement
from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.policies.rescheduling.protocol import Rescheduling
from ballast_core.state.inventory import Inventory

ENDPOINTS = tuple(Endpoint(EndpointId(f"e{n}"), f"e{n}:8000", Role.FLEXIBLE) for n in range(3))
ANSWERS = [(endpoint, Observation(1.0 + n, n, 2 * n, n / 4)) for n, endpoint in enumerate(ENDPOINTS)]


def test_observations_are_the_answers_that_they_were_made_of() -> None:
    made = Observations.of(ANSWERS)
    assert (list(made), len(made)) == (ANSWERS, 3)
    assert list(made.take([2, 0])) == [ANSWERS[2], ANSWERS[0]]
    assert list(made.take([])) == []


def test_slots_that_were_asked_for_before_are_looked_up_again_after_a_change() -> None:
    inventory = Inventory()
    assert inventory.slots_as(ENDPOINTS) is None
    for endpoint in ENDPOINTS:
        inventory.put(endpoint)
    for _ in range(2):
        slots = inventory.slots_as(ENDPOINTS)
        assert slots is not None
        assert slots.tolist() == [0, 1, 2]
    inventory.lose(1)
    assert inventory.slots_as(ENDPOINTS) is None
    inventory.release(1)
    inventory.put(Endpoint(EndpointId("e1"), "moved:8000", Role.FLEXIBLE))
    assert inventory.slots_as(ENDPOINTS) is None


@pytest.mark.parametrize(
    ("admission", "rescheduling", "reads"),
    [(None, None, False), (Open(), None, False), (Bounded(), None, True), (None, Ares(), True)],
)
def test_kv_usage_is_read_by_admission_and_rescheduling_only(
    admission: Admission | None, rescheduling: Rescheduling | None, reads: bool
) -> None:
    placement = build_placement("ballast")
    settings = DirectorSettings(
        prefill=placement, decode=placement, admission=admission, rescheduling=rescheduling, profiles={}
    )
    assert settings.reads_kv_usage is reads
