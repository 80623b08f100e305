"""One HardwareProfile manifest, three readers: the operator, the gateway and the simulator mean the same hardware."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from ballast_api import names
from ballast_api.loading import parse_settings
from ballast_core.directing.director import Director
from ballast_core.model import Endpoint
from ballast_core.model.events import EndpointObserved
from ballast_gateway.observe.pods import PodReady, read_pod
from ballast_gateway.settings import director_settings
from ballast_operator.planning.plan import plan
from ballast_sim.own_profiles import read_profiles
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, build_fleet
from tests.support.operator_builders import observed, pool, profile, serving_pool
from tests.support.pod_api import pod

NAME = "ours"
PROFILE = profile(NAME, kvTokens=12_345, aMs=17.25, linkGbps=25.0)


def beliefs_of(director: Director, endpoint: Endpoint) -> list[float]:
    """Capacity, and two figures that hang on every coefficient of the step's law and of the link."""
    slot = director.inventory.slot_of(endpoint.id)
    assert slot is not None
    at, hardware = np.array([slot]), director.beliefs.hardware
    step_s = hardware.step_s(at, 100.0, 5_000.0, 2_000.0, 20.0)
    copy_s = hardware.link_setup_s(at) + 1_000 * hardware.link_token_s(at)
    return [float(column[0]) for column in (hardware.kv_tokens(at), hardware.token_budget(at), step_s, copy_s)]


def in_the_cluster() -> list[float]:
    """ConfigMap text and pod annotation as the operator renders them, read as the gateway reads them."""
    made = plan(
        observed(
            serving_pool(pool("prefill", "Prefill", hardware=NAME), pool("decode", "Decode", hardware=NAME)),
            profiles={NAME: PROFILE},
        )
    ).apply
    text = next(item for item in made if item["kind"] == "ConfigMap")["data"][names.GATEWAY_CONFIG_FILE]
    template = next(
        item["spec"]["template"]
        for item in made
        if item["kind"] == "Deployment" and item["spec"]["template"]["metadata"]["labels"].get(names.LABEL_POOL)
    )
    found = read_pod(pod("a", annotations=template["metadata"]["annotations"]), port=8000)
    assert isinstance(found, PodReady)
    director = Director(director_settings(parse_settings(text)))
    director.on_event(EndpointObserved(found.endpoint), 0.0)
    return beliefs_of(director, found.endpoint)


def simulated(file: Path) -> list[float]:
    """As `ballast simulate --profiles FILE --endpoints 1P1D@ours` does it."""
    file.write_text(yaml.safe_dump(PROFILE))
    shape = f"1P1D@{NAME}"
    machines = parse_shape(shape, None, read_profiles([file]))
    source = WorkloadSource(workload="chat", limit=1)
    (policy, *_) = parse_policies("ballast")
    spec = RunSpec(setup=Setup(machines=machines, shape=shape, source=source), policy=policy)
    fleet = build_fleet(spec, source.load(0, 1.0))
    fleet.run()
    return beliefs_of(fleet.director, machines[0].endpoint)


def test_a_users_profile_means_the_same_in_the_cluster_and_in_the_simulator(tmp_path: Path) -> None:
    """Its 12,345 KV tokens are what both Directors believe."""
    believed = in_the_cluster()
    assert believed[0] == 12_345
    assert simulated(tmp_path / "ours.yaml") == believed
