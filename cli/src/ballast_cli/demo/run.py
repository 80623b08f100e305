"""One policy of the demo: start the fleet, replay the workload through its gateway, stop the fleet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ballast_api import names
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_cli.demo.plan import DemoError, Fleet, endpoints_file, gateway_settings
from ballast_cli.demo.ports import free_ports
from ballast_cli.demo.processes import ProcessGroup
from ballast_sim.load import LoadReport, LoadSettings, Progress, run_load
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.workloads import WorkloadRequest

GRACE_S = 45.0
"""Time that running requests get after the last arrival, so that an overloaded fleet cannot hold the demo up."""


async def run_policy(
    fleet: Fleet,
    policy: SchedulingPolicySpec,
    requests: Sequence[WorkloadRequest],
    folder: Path,
    *,
    on_progress: Callable[[Progress], None],
    on_ready: Callable[[str], None],
) -> LoadReport:
    """Serve the workload under one policy. `on_ready` gets the address of the gateway's live page.

    Raises `DemoError` when a process does not start or dies.
    """
    ports = free_ports(2 * len(fleet.engines) + 2)
    engine_ports, side_ports, (proxy_port, admin_port) = (
        ports[: len(fleet.engines)],
        ports[len(fleet.engines) : -2],
        ports[-2:],
    )
    endpoints = folder / "endpoints.yaml"
    endpoints.write_text(endpoints_file(fleet.engines, engine_ports).to_yaml())
    config = folder / "gateway.yaml"
    config.write_text(
        gateway_settings(fleet, policy, endpoints, proxy_port=proxy_port, admin_port=admin_port).to_yaml()
    )
    with ProcessGroup(folder) as processes:
        _start_engines(processes, fleet, engine_ports, side_ports)
        await processes.ready(
            {
                engine.name: f"http://127.0.0.1:{port}/health"
                for engine, port in zip(fleet.engines, engine_ports, strict=True)
            }
        )
        processes.start("gateway", ["gateway", "--config", str(config)])
        await processes.ready({"gateway": f"http://127.0.0.1:{admin_port}/readyz"})
        on_ready(f"http://127.0.0.1:{admin_port}/ballast/live")
        return await _replay(fleet, requests, proxy_port, processes, on_progress)


def _start_engines(processes: ProcessGroup, fleet: Fleet, ports: Sequence[int], side_ports: Sequence[int]) -> None:
    model = fleet.pool.spec.model
    kv_roles = {"Prefill": "kv_producer", "Decode": "kv_consumer", "Flexible": "kv_both"}
    connector = fleet.pool.spec.engine.kv_connector
    for engine, port, side_port in zip(fleet.engines, ports, side_ports, strict=True):
        transfer = {"kv_connector": connector.type, "kv_role": kv_roles[engine.role], **connector.config}
        arguments = ["engine-sim", "serve", model.name, "--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--served-model-name", *model.all_served_names()]
        arguments += ["--kv-transfer-config", json.dumps(transfer)]
        arguments += ["--tensor-parallel-size", str(engine.tensor_parallel_size)]
        if model.max_model_len is not None:
            arguments += ["--max-model-len", str(model.max_model_len)]
        processes.start(
            engine.name,
            arguments,
            {
                names.ENV_PROFILE: json.dumps(engine.profile.spec.dump()),
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
            },
        )


async def _replay(
    fleet: Fleet,
    requests: Sequence[WorkloadRequest],
    proxy_port: int,
    processes: ProcessGroup,
    on_progress: Callable[[Progress], None],
) -> LoadReport:
    settings = LoadSettings(
        url=f"http://127.0.0.1:{proxy_port}",
        model=fleet.pool.spec.model.all_served_names()[0],
        objective=objective_of(fleet),
        prompt_seed=0,
        timeout_s=120.0,
    )
    stop = asyncio.Event()
    last_s = max(request.arrival_s for request in requests)

    def watch(progress: Progress) -> None:
        if processes.died() is not None or progress.elapsed_s > last_s + GRACE_S:
            stop.set()
        on_progress(progress)

    report = await run_load(settings, requests, watch, stop)
    dead = processes.died()
    if dead is not None:
        raise DemoError(f"{dead.name} {dead.ending} under load; the end of its log:\n{dead.last_words()}")
    return report


def objective_of(fleet: Fleet) -> Objective:
    """The thresholds of the fleet's ServiceLevelObjective; without one, none."""
    if fleet.objective is None:
        return Objective()
    spec = fleet.objective.spec
    return Objective(ttft_s=spec.ttft_s, tpot_s=spec.tpot_s, e2e_s=spec.e2e_s)
