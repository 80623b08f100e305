"""The `ballast demo` command: progress while it runs, a table at its end, nothing left behind."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from ballast_api.common import ApiModel
from ballast_api.errors import InvalidInput
from ballast_api.loading import load_manifest_files
from ballast_api.scheduling_policy import AdmissionSpec, PlacementSpec, SchedulingPolicySpec
from ballast_api.serving_pool import ServingPool
from ballast_cli.demo.plan import DemoError, Fleet, plan_fleet
from ballast_cli.demo.report import comparison, load_words, next_steps, verdict
from ballast_cli.demo.run import GRACE_S, objective_of, run_policy
from ballast_cli.options.trace_files import origin
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_sim import capacity
from ballast_sim.load import LoadReport
from ballast_sim.load import Progress as LoadProgress
from ballast_sim.naming import known_names
from ballast_sim.workloads import WorkloadRequest, load_workload

FITTING_SHARE = 0.8
"""Share of the arithmetic capacity beyond which a workload is called too hot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The values of the command line."""

    says: str
    """What there is to see, in words; empty where that is not known."""
    manifests: tuple[Path, ...]
    """Of several ServingPools the last one counts."""
    policy: str | None
    trace: Path | None
    workload: str
    rate_rps: float | None
    """None is the trace's or the workload's own."""
    duration_s: float
    rate_scale: float
    seed: int

    @property
    def source(self) -> str:
        """Where the requests come from, in words."""
        return self.workload if self.trace is None else origin(self.trace)


def run_demo(options: DemoOptions, in_words: Callable[[Exception], str] = str) -> int:
    """The whole demo; returns the exit status: 0, 1 when requests failed, 2 when it cannot run, 130 when stopped.
    `in_words` says what an error is about."""
    console = Console()
    try:
        fleet = plan_fleet(resources_of(options.manifests))
        policies = _policies(fleet, options.policy)
        requests = load_workload(
            trace=options.trace,
            workload=options.workload,
            rate_rps=options.rate_rps,
            duration_s=options.duration_s,
            rate_scale=options.rate_scale,
            seed=options.seed,
        )
        if not requests:
            raise DemoError(f"no request arrives within {options.duration_s:g} s: make --duration longer")
        _introduce(console, fleet, policies, requests, options)
        reports = asyncio.run(_compare(console, fleet, policies, requests))
    except (DemoError, InvalidInput, ValueError) as error:
        console.print(f"error: {in_words(error)}", style="red", markup=False)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped; nothing is left running")
        return 130
    console.print(comparison(reports, objective_of(fleet), planned=len(requests)))
    for name, report in reports.items():
        if report.interrupted:
            console.print(
                f"{name}: cut off {GRACE_S:g} s after the last arrival; the figures are of what was answered by then",
                style="red",
                markup=False,
            )
        for failure in report.failures[:3]:
            console.print(f"{name}: {failure.request_id} failed: {failure.reason}", style="red", markup=False)
    console.print(next_steps(options.manifests[0]), highlight=False, markup=False)
    words, style = verdict(reports, objective_of(fleet))
    console.print(f"\n{words}", style=style, markup=False, highlight=False)
    return int(any(report.failed or report.interrupted for report in reports.values()))


def resources_of(folders: Sequence[Path]) -> list[ApiModel]:
    """What the folders hold. A ServingPool takes the place of one in a folder before. Raises `DemoError`."""
    found: list[ApiModel] = []
    for folder in folders:
        if not folder.exists():
            raise DemoError(f"--manifests: there is no {folder}; name a folder that exists, or none")
        held = load_manifest_files(folder)
        if any(isinstance(resource, ServingPool) for resource in held):
            found = [resource for resource in found if not isinstance(resource, ServingPool)]
        found += held
    return found


def _stop_on_signals() -> None:
    """End in order on SIGHUP and SIGTERM, as on Ctrl-C: the processes would live on."""
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _policies(fleet: Fleet, names: str | None) -> dict[str, SchedulingPolicySpec]:
    """By name: those asked for, or what routers usually do beside the policy of the manifests."""
    if names is None:
        usual = {name: _plain(name) for name in ("round-robin", "least-requests")}
        return usual | {fleet.policy.decode.type: fleet.policy}
    unknown = [name for name in names.split(",") if name not in PLACEMENTS]
    if unknown:
        raise DemoError(
            f"--policy: unknown placement {unknown[0]!r}; " + known_names(unknown[0], PLACEMENTS, "ballast policies")
        )
    return {name: _plain(name) for name in names.split(",")}


def _plain(name: str) -> SchedulingPolicySpec:
    """Placement alone, as a router has it that holds no request back."""
    placement = PlacementSpec(type=name)
    return SchedulingPolicySpec(prefill=placement, decode=placement, admission=AdmissionSpec(type="open"))


def _introduce(
    console: Console,
    fleet: Fleet,
    policies: dict[str, SchedulingPolicySpec],
    requests: Sequence[WorkloadRequest],
    options: DemoOptions,
) -> None:
    hardware = {engine.profile.metadata.name: engine.profile.spec.hardware for engine in fleet.engines}
    if options.says:
        console.print(f"[bold cyan]{options.says}[/]")
    console.print(
        f"[bold]{fleet.pool.metadata.name}[/]: {fleet.pool.spec.model.name} on {fleet.shape}, "
        + ", ".join(f"{name} ({what})" if what else name for name, what in hardware.items())
    )
    by_role = {
        stage: [
            e.profile.spec.to_simulate(e.profile.metadata.name) for e in fleet.engines if e.role in (role, "Flexible")
        ]
        for stage, role in (("prefill", "Prefill"), ("decode", "Decode"))
    }
    carried = capacity.estimate(requests, prefill=by_role["prefill"], decode=by_role["decode"])
    rate_rps = capacity.mean_rate_rps(requests, max(options.duration_s, 1e-9) if len(requests) > 1 else 1.0)
    console.print(f"workload {options.source}: {len(requests)} requests in {options.duration_s:g} s, "
                  + load_words(carried, rate_rps, FITTING_SHARE, rate_scale=options.rate_scale))  # fmt: skip
    console.print(
        f"{len(fleet.engines)} engine-sims and a gateway as local processes, for each of: {', '.join(policies)}"
    )


async def _compare(
    console: Console, fleet: Fleet, policies: dict[str, SchedulingPolicySpec], requests: Sequence[WorkloadRequest]
) -> dict[str, LoadReport]:
    _stop_on_signals()
    reports = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bars:
        for name, policy in policies.items():
            task = bars.add_task(name, total=len(requests), note="starting engines")

            def show(progress: LoadProgress, task_id: TaskID = task) -> None:
                bars.update(
                    task_id,
                    completed=progress.completed + progress.failed,
                    note=f"{progress.in_flight} in flight, {progress.failed} failed",
                )

            def ready(page: str, task_id: TaskID = task) -> None:
                bars.console.print(f"watch it live: {page}", highlight=False, markup=False)
                bars.update(task_id, note="serving")

            with tempfile.TemporaryDirectory(prefix="ballast-demo-") as folder:
                reports[name] = await run_policy(
                    fleet, policy, requests, Path(folder), on_progress=show, on_ready=ready
                )
    return reports
