"""`ballast simulate`: which policy for my traffic?"""

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ballast_cli.options.declaring import in_options, with_options
from ballast_cli.options.hardware import Hardware
from ballast_cli.options.policies import Policies
from ballast_cli.options.running import Jobs, Slo, processes
from ballast_cli.options.scaling import Scales
from ballast_cli.options.surroundings import Surroundings
from ballast_cli.options.traffic import SimulatedTraffic

if TYPE_CHECKING:
    from ballast_cli.simulate_view import View
    from ballast_sim.simulation.runs.comparison import Comparison
    from ballast_sim.simulation.runs.experiment import Outcome, Setup

INTERRUPTED = 130
MOST_LOAD = 10
"""Times the capacity: a larger value is a percentage by mistake."""


@with_options
def simulate_command(
    *,
    endpoints: Annotated[
        str, typer.Option(help="The fleet, such as 8P@a100-qwen3-32b,4D@h20-qwen3-32b; C colocated, F flexible.")
    ],
    hardware: Hardware,
    traffic: SimulatedTraffic,
    policies: Policies,
    load: Annotated[
        float | None, typer.Option(help="Scale arrivals to this share of the capacity of least-requests, measured.")
    ] = None,
    rate_scale: Annotated[float | None, typer.Option(help="Multiply the rate of arrivals.")] = None,
    slo: Slo = None,
    seed: Annotated[str, typer.Option(help="Seed, or several: 0,1,2. One row for each.")] = "0",
    scales: Scales,
    surroundings: Surroundings,
    json_out: Annotated[str | None, typer.Option("--json", help="Write one array to a file, or - for stdout.")] = None,
    html_out: Annotated[Path | None, typer.Option("--html", help="Write a self-contained report.")] = None,
    jobs: Jobs = None,
) -> None:
    """Simulate a fleet under a workload, once for each policy (and seed), and compare.

    The gateway's own decision code runs, in front of engines that repeat vLLM's scheduler. Ctrl-C ends the runs and
    reports their figures so far.

    Exit status: 0, 2 for input that cannot work, 130 when interrupted.
    """
    from ballast_cli.interrupts import stop_on_interrupt
    from ballast_cli.output import check_outputs
    from ballast_cli.simulate_view import View
    from ballast_core import kernel
    from ballast_sim.simulation.inputs.objective import Objective
    from ballast_sim.simulation.policies.choice import check_composition
    from ballast_sim.simulation.runs.comparison import Comparison, check_fits, parse_seeds
    from ballast_sim.simulation.runs.experiment import Setup
    from ballast_sim.simulation.runs.pool import WorkerDied

    view = View(plain_stdout=json_out != "-")
    try:
        _check_rates(load, rate_scale)
        at_a_time = processes(jobs)
        inputs = [traffic.trace, policies.policy_file, surroundings.failures, *(hardware.profiles or ())]
        check_outputs({"--json": json_out, "--html": html_out}, inputs, files_only=("--html",))
        seeds = parse_seeds(seed)
        machines = hardware.machines(endpoints)
        setup = Setup(
            machines=machines,
            shape=endpoints,
            source=traffic.simulated(),
            objective=Objective.parse(slo or ""),
            fleet=surroundings.settings(machines),
            autoscaling=scales.autoscaling(machines),
        )
        _check_scaling(setup, html_out)
        asked = Comparison(
            setup=setup,
            policies=policies.choices(),
            seeds=seeds,
            bindings=policies.bindings(),
            curves=html_out is not None,
        )
        if not kernel.installed():
            view.note("no compiled kernel: decisions run on numpy, with the same answers in several times the time")
        for remark in check_composition(asked.policies, machines, setup.fleet.engine_policy):
            view.note(remark)
        check_fits(machines, setup.source, seeds[0], setup.fleet.physics)
        for remark in setup.source.remarks():
            view.note(f"{setup.source.name}: {remark}")
        with stop_on_interrupt() as stop:
            outcomes = _simulate(
                asked=asked, load=load, rate_scale=rate_scale or 1.0, jobs=at_a_time, stop=stop, view=view
            )
        _write(asked, outcomes, json_out, html_out, view)
    except (ValueError, WorkerDied) as error:
        view.error(in_options(error, simulate_command))
        raise typer.Exit(2) from None
    if stop.is_set():
        what = "rows above count what had arrived; runs that had not begun are missing"
        view.note(f"interrupted: {what if outcomes else 'nothing had arrived yet'}")
        raise typer.Exit(INTERRUPTED)


def _check_rates(load: float | None, rate_scale: float | None) -> None:
    from ballast_sim.settings import SettingError

    if load is not None and rate_scale is not None:
        raise SettingError(("load", "rate_scale"), "both set the rate of arrivals; give one of them")
    for name, value in (("load", load), ("rate_scale", rate_scale)):
        if value is not None and not 0 < value < float("inf"):
            raise SettingError(name, f"must be above 0 and finite, not {value:g}")
    if load is not None and load > MOST_LOAD:
        raise SettingError(
            "load", f"{load:g} is {load:g} times the capacity; write {load / 100:g} for {load:g} %, {MOST_LOAD} at most"
        )


def _check_scaling(setup: "Setup", html_out: Path | None) -> None:
    from ballast_sim.settings import SettingError
    from ballast_sim.simulation.inputs.objective import Objective

    if setup.autoscaling is None:
        return
    setup.autoscaling.pools(setup.machines)
    if html_out is not None:
        raise SettingError("html_out", "the report draws a fleet that stays as it is; leave --autoscale or this out")
    if setup.fleet.failures:
        raise SettingError("failures", "a script names machines, and a scaling policy replaces them; leave one out")
    if setup.objective == Objective():
        raise SettingError("slo", "a scaling policy needs thresholds; write such as ttft=2,tpot=0.05")


def _simulate(
    *,
    asked: "Comparison",
    load: float | None,
    rate_scale: float,
    jobs: int,
    stop: threading.Event,
    view: "View",
) -> "list[Outcome]":
    """The outcomes there are, in the order of the rows."""
    from ballast_sim.simulation.capacity.search import Interrupted
    from ballast_sim.simulation.runs.pool import run_all

    if load is not None:
        try:
            rate_scale = load * _capacity(asked, stop, view)
        except Interrupted:
            return []
    specs = asked.runs(rate_scale, load)
    with view.progress([f"{spec.policy.name} seed {spec.seed}" for spec in specs]) as on_progress:
        outcomes = run_all(specs, jobs, stop, on_progress)
    return [outcome for outcome in outcomes if outcome is not None]


def _capacity(asked: "Comparison", stop: threading.Event, view: "View") -> float:
    """The rate scale at which the set-up's capacity is reached; printed."""
    from ballast_sim.simulation.capacity.cache import cached_capacity
    from ballast_sim.simulation.capacity.search import measure_capacity
    from ballast_sim.simulation.runs.pool import throttled

    with view.search("capacity of least-requests/least-requests") as (on_probe, on_progress):
        beat = throttled(on_progress, stop.is_set)
        capacity, path = cached_capacity(
            asked.setup, lambda: measure_capacity(asked.setup, on_probe=on_probe, beat=beat)
        )
    wanted = asked.setup.objective.ttft_s
    measure = f"P99 TTFT within {wanted:g} s" if wanted is not None else "its queue does not grow"
    where = f"cached in {path}" if path else f"{capacity.probes} probes"
    rate = f"{capacity.rate_rps:.4g} requests/s, " if capacity.rate_rps else ""
    view.note(
        f"capacity of least-requests/least-requests: {rate}rate scale {capacity.rate_scale:.4g} ({measure}; {where})"
    )
    if capacity.bounded:
        view.note(
            "  that is the arithmetic limit of decode: the run is too short to show the fleet full; see --duration"
        )
    return capacity.rate_scale


def _write(
    asked: "Comparison", outcomes: "list[Outcome]", json_out: str | None, html_out: Path | None, view: "View"
) -> None:
    from ballast_cli.output import write_output

    if outcomes:
        view.table([outcome.figures for outcome in outcomes])
    if json_out is not None:
        text = json.dumps([outcome.figures for outcome in outcomes], indent=1, allow_nan=False)
        write_output("--json", json_out, text + "\n")
    if html_out is not None and outcomes:
        import shlex
        import sys
        from datetime import UTC, datetime

        from ballast_sim.simulation.report import render

        command = shlex.join(["ballast", *sys.argv[1:]])
        date = f"{datetime.now(UTC):%d %B %Y, %H:%M} UTC"
        write_output("--html", html_out, render(asked.setup, outcomes, command=command, date=date))
        view.note(f"report: {html_out}")
