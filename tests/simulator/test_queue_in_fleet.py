"""Queue orders in a simulated fleet: told to engines as priority, or kept in the gateway's waiting room."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest

from ballast_core.directing.settings import DirectorSettings
from ballast_core.policies.admission import Admission, Bounded
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.queue.orders import Fcfs
from ballast_core.policies.queue.protocol import QueueOrder
from ballast_core.policies.queue.uniboost import UniBoost
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.workloads.request import WorkloadRequest


def heavy_prompts(count: int = 250, rate_rps: float = 5.0, seed: int = 7) -> list[WorkloadRequest]:
    """Log-normal prompts, 3,600 tokens in the median and ten times as many at the end, close to what one GPU takes."""
    draw, now_s, made = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += draw.expovariate(rate_rps)
        tokens = 1 + int(min(40_000, draw.lognormvariate(8.2, 1.2)))
        made.append(WorkloadRequest(arrival_s=now_s, input_tokens=tokens, output_tokens=2))
    return made


def ttft_s(
    queue: QueueOrder | None, admission: Admission | None, engine_policy: Literal["fcfs", "priority"] = "fcfs"
) -> np.ndarray:
    """Time to first token of every request."""
    settings = DirectorSettings(
        prefill=LeastRequests(), decode=LeastRequests(), queue=queue, admission=admission, profiles=SHIPPED_PROFILES
    )
    fleet = Fleet(parse_shape("1P1D@h200-llama3-8b", None), settings, FleetSettings(engine_policy=engine_policy))
    fleet.load(heavy_prompts())
    fleet.run()
    assert all(record.first_token_s is not None and record.rejected is None for record in fleet.records)
    assert len(fleet.director.queue) == len(fleet.director.ledger) == 0
    return np.array([(record.first_token_s or 0.0) - record.arrival_s for record in fleet.records])


def test_engines_that_are_told_uniboosts_order_answer_most_requests_sooner() -> None:
    """Stock vLLM with --scheduling-policy priority: the median falls, as the papers' page saw on vLLM itself."""
    first_come = ttft_s(None, None)
    told = ttft_s(UniBoost(engine_priority=True, adaptive=False, gamma_per_s=0.3), None, "priority")
    assert np.median(told) < 0.8 * np.median(first_come)
    untold = ttft_s(UniBoost(adaptive=False, gamma_per_s=0.3), None, "priority")
    np.testing.assert_array_equal(untold, first_come)


@pytest.mark.parametrize("places", [1, 2])
def test_the_waiting_room_orders_as_well_without_any_help_of_the_engines(places: int) -> None:
    """What does not lie in an engine's queue can still be overtaken."""
    admission = Bounded(max_prefill_requests=places)
    first_come = ttft_s(Fcfs(), admission)
    boosted = ttft_s(UniBoost(adaptive=False, gamma_per_s=0.3), admission)
    assert np.median(boosted) < 0.8 * np.median(first_come)
