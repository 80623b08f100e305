"""A fleet without requests scales to zero; the first request is held and served."""

import asyncio

import pytest

from kit import Cluster, Kubectl, wait_until
from kit.quickstart import NAME, condition
from test_scaling import check, fleet, fleet_objects, load, ready, serving  # noqa: F401 - a fixture among them

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("scaling"),
    pytest.mark.rotating(4),
]


async def test_a_fleet_scales_to_zero_and_serves_the_request_that_wakes_it(
    cluster: Cluster,
    fleet: Kubectl,  # noqa: F811 - the fixture
) -> None:
    bounds = {"minReplicas": 0, "maxReplicas": 2}
    pools = ({"like": "prefill", "autoscaling": bounds}, {"like": "decode", "autoscaling": bounds})
    fleet.apply(*fleet_objects(cluster, fleet, *pools, scaleToZeroAfterS=60))

    def asleep() -> bool:
        found = fleet.get("servingpool", NAME)
        complete = condition(found, "Progressing").get("status") == "False"  # the gateways are there, too
        return complete and condition(found, "Available").get("reason") == "ScaledToZero"

    await asyncio.to_thread(wait_until, asleep, 180, "it begins with nothing")
    async with load(fleet, 1.0, prompt_tokens=100, output_tokens=30, seed=1) as first:
        await asyncio.to_thread(serving, fleet)
    check(first, "woken")
    await asyncio.to_thread(wait_until, lambda: asleep() and not ready(fleet), 300, "it sleeps again")
