"""`ballast simulate`: which policy for my traffic?"""

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ballast_cli.simulate_view import View
    from ballast_core.model import Binding
    from ballast_sim.simulation.inputs.failures import Failure
    from ballast_sim.simulation.inputs.shapes import Machine
    from ballast_sim.simulation.inputs.source import WorkloadSource
    from ballast_sim.simulation.policies.choice import PolicyChoice
    from ballast_sim.simulation.runs.comparison import Comparison
    from ballast_sim.simulation.runs.experiment import Outcome

INTERRUPTED = 130


def simulate_command(
    *,
    endpoints: Annotated[
        str, typer.Option(help="The fleet, such as 8P@a100-qwen3-32b,4D@h20-qwen3-32b; C colocated, F flexible.")
    ],
    trace: Annotated[Path | None, typer.Option(help="Trace file (CSV or JSONL, plain or gzip).")] = None,
    workload: Annotated[str | None, typer.Option(help="Built-in workload instead; see `ballast workloads`.")] = None,
    profile: Annotated[str | None, typer.Option(help="Profile of --endpoints parts that name none.")] = None,
    profiles: Annotated[
        list[Path] | None,
        typer.Option(help="HardwareProfile manifests of your own, for --endpoints; repeatable."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policies to compare: NAME places decodes, PREFILL/DECODE names both.")
    ] = None,
    policy_file: Annotated[Path | None, typer.Option(help="Compare the SchedulingPolicies of a manifest.")] = None,
    queue: Annotated[
        str | None, typer.Option(help="Queue order of all policies: TYPE, TYPE:name=value,... or none.")
    ] = None,
    admission: Annotated[str | None, typer.Option(help="Admission of all policies, in the same way.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition of all policies, in the same way.")] = None,
    rescheduling: Annotated[str | None, typer.Option(help="Rescheduling of all policies, in the same way.")] = None,
    load: Annotated[
        float | None, typer.Option(help="Scale arrivals to this share of the capacity of least-requests, measured.")
    ] = None,
    rate_scale: Annotated[float | None, typer.Option(help="Multiply the rate of arrivals.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second of a built-in workload, or of a file of lengths.")
    ] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="Their arrivals: poisson, gamma:CV or burst:SIZE. Default: poisson.")
    ] = None,
    slo: Annotated[str | None, typer.Option(help="Thresholds in seconds: ttft=2,tpot=0.05,e2e=60.")] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds of arrivals. Default: a whole trace; 600 of a built-in workload.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many requests.")] = None,
    seed: Annotated[str, typer.Option(help="Seed, or several: 0,1,2. One row for each.")] = "0",
    binding: Annotated[
        str, typer.Option(help="When the decode endpoint is fixed: at arrival (early), at hand-off (late), or both.")
    ] = "late",
    closed_loop: Annotated[
        bool, typer.Option("--closed-loop", help="A session's next turn waits for the end of the one before.")
    ] = False,
    max_tokens: Annotated[
        str, typer.Option(help="The max_tokens that policies see: none, a number, or exact (each output's length).")
    ] = "none",
    gateways: Annotated[int, typer.Option(help="Gateway replicas, each with its own view.")] = 1,
    scrape_interval: Annotated[float, typer.Option(help="Seconds between two scrapes of an endpoint.")] = 0.2,
    scrape_delay: Annotated[float, typer.Option(help="Age of what a scrape says, in seconds.")] = 0.005,
    scrape_loss: Annotated[float, typer.Option(help="Share of the scrapes that get lost, 0 to 1.")] = 0.0,
    physics: Annotated[
        str,
        typer.Option(help="How engines work: vllm, or as in a paper: sibyl-printed, sibyl-held, ares-linear."),
    ] = "vllm",
    engine_policy: Annotated[
        str, typer.Option(help="vLLM's --scheduling-policy: fcfs, or priority, for queue orders with engine_priority.")
    ] = "fcfs",
    lengths: Annotated[
        str, typer.Option(help="Predicted output lengths: none, oracle, ares, noisy:100 (mean error), noisy:60%.")
    ] = "none",
    local_batching: Annotated[
        str, typer.Option(help="Prompt tokens in a step: default, chunk:512, or slo:0.1 (seconds between tokens).")
    ] = "default",
    cut_tokens: Annotated[
        str, typer.Option(help="Tokens before a cut in the output: streams (connector plug-in), at-cut (stock vLLM).")
    ] = "streams",
    kv_transfer: Annotated[
        str, typer.Option(help="KV between endpoints: whole after the source's end, or chunked while it computes.")
    ] = "whole",
    engine_scheduler: Annotated[
        str,
        typer.Option(
            help="Order inside engines: fcfs, sarathi:512, edf, sjf, srpt, las, uniboost:gamma=1,k=256,delta=0.1."
        ),
    ] = "fcfs",
    failures: Annotated[
        Path | None,
        typer.Option(help="Script of failures (JSON or YAML): crashes, drains, slow endpoints, lost scrapes."),
    ] = None,
    json_out: Annotated[str | None, typer.Option("--json", help="Write one array to a file, or - for stdout.")] = None,
    html_out: Annotated[Path | None, typer.Option("--html", help="Write a self-contained report.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes at a time. Default: all cores.")] = None,
) -> None:
    """Simulate a fleet under a workload, once for each policy (and seed), and compare.

    The gateway's own decision code runs, in front of engines that repeat vLLM's scheduler. Ctrl-C ends the runs and
    reports what they came to.

    Exit status: 0, 2 for input that cannot work, 130 when interrupted.
    """
    from ballast_cli.interrupts import stop_on_interrupt
    from ballast_cli.output import check_outputs
    from ballast_cli.simulate_view import View
    from ballast_core import kernel
    from ballast_sim.engine.batching import LocalBatching
    from ballast_sim.own_profiles import read_profiles
    from ballast_sim.simulation.inputs.engine_scheduler import parse_scheduler
    from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
    from ballast_sim.simulation.inputs.length_hints import LengthHints
    from ballast_sim.simulation.inputs.objective import Objective
    from ballast_sim.simulation.inputs.shapes import parse_shape
    from ballast_sim.simulation.policies.choice import check_composition, with_parts
    from ballast_sim.simulation.runs.comparison import Comparison, check_fits, parse_seeds
    from ballast_sim.simulation.runs.experiment import Setup
    from ballast_sim.simulation.runs.pool import WorkerDied, default_jobs

    view = View(plain_stdout=json_out != "-")
    try:
        _check_rates(load, rate_scale)
        if jobs is not None and jobs < 1:
            raise ValueError(f"--jobs: must be 1 or more, not {jobs}")
        if html_out == Path("-"):
            raise ValueError("--html: writes a file only; name one")
        check_outputs({"--json": json_out, "--html": html_out}, [trace, policy_file, failures, *(profiles or ())])
        seeds = parse_seeds(seed)
        machines = parse_shape(endpoints, profile, read_profiles(profiles or ()))
        setup = Setup(
            machines=machines,
            shape=endpoints,
            source=_source(
                trace=trace,
                workload=workload,
                rate=rate,
                arrivals=arrivals,
                duration=duration,
                limit=limit,
                closed_loop=closed_loop,
            ),
            objective=Objective.parse(slo or ""),
            fleet=FleetSettings(
                scrape_interval_s=scrape_interval,
                scrape_delay_s=scrape_delay,
                scrape_loss_ratio=scrape_loss,
                gateways=gateways,
                known_limits=max_tokens == "exact",
                max_tokens=_max_tokens(max_tokens),
                physics=physics,
                engine_policy=engine_policy,  # type: ignore[arg-type]  # checked there
                failures=_failures(failures, machines),
                length_hints=LengthHints.parse(lengths),
                local_batching=LocalBatching.parse(local_batching),
                cut_tokens=cut_tokens,  # type: ignore[arg-type]
                kv_transfer=kv_transfer,  # type: ignore[arg-type]
                engine_scheduler=parse_scheduler(engine_scheduler),
            ),
        )
        policies = with_parts(
            _policies(policy, policy_file),
            {"queue": queue, "admission": admission, "partition": partition, "rescheduling": rescheduling},
        )
        if not kernel.installed():
            view.note("no compiled kernel: decisions run on numpy, with the same answers in several times the time")
        for remark in check_composition(policies, machines, engine_policy):
            view.note(remark)
        asked = Comparison(
            setup=setup,
            policies=policies,
            seeds=seeds,
            bindings=_bindings(binding),
            curves=html_out is not None,
        )
        check_fits(machines, setup.source, seeds[0], physics)
        with stop_on_interrupt() as stop:
            outcomes = _simulate(
                asked=asked, load=load, rate_scale=rate_scale, jobs=jobs or default_jobs(), stop=stop, view=view
            )
    except (ValueError, WorkerDied) as error:
        view.error(_with_dashes(str(error)))
        raise typer.Exit(2) from None
    try:
        _write(asked, outcomes, json_out, html_out, view)
    except ValueError as error:
        view.error(str(error))
        raise typer.Exit(2) from None
    if stop.is_set():
        what = "rows above count what had arrived; runs that had not begun are missing"
        view.note(f"interrupted: {what if outcomes else 'nothing had arrived yet'}")
        raise typer.Exit(INTERRUPTED)


def _simulate(
    *,
    asked: "Comparison",
    load: float | None,
    rate_scale: float | None,
    jobs: int,
    stop: threading.Event,
    view: "View",
) -> "list[Outcome]":
    """The outcomes there are, in the order of the rows."""
    from ballast_sim.simulation.capacity.search import Interrupted
    from ballast_sim.simulation.runs.pool import run_all

    scale = rate_scale or 1.0
    if load is not None:
        try:
            scale = load * _capacity(asked, stop, view)
        except Interrupted:
            return []
    specs = asked.runs(scale, load)
    with view.progress([f"{spec.policy.name} seed {spec.seed}" for spec in specs]) as tell:
        outcomes = run_all(specs, jobs, stop, tell)
    return [outcome for outcome in outcomes if outcome is not None]


def _capacity(asked: "Comparison", stop: threading.Event, view: "View") -> float:
    """The rate scale at which the set-up's capacity is reached; printed."""
    from ballast_sim.simulation.capacity.cache import cached_capacity
    from ballast_sim.simulation.capacity.search import measure_capacity
    from ballast_sim.simulation.runs.pool import throttled

    with view.search("capacity of least-requests/least-requests") as (on_probe, tell):
        beat = throttled(tell, stop.is_set)
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


# --- options --------------------------------------------------------------------------------------------------------


def _check_rates(load: float | None, rate_scale: float | None) -> None:
    if load is not None and rate_scale is not None:
        raise ValueError("--load, --rate-scale: both set the rate of arrivals; give one of them")
    for name, value in (("--load", load), ("--rate-scale", rate_scale)):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name}: must be above 0 and finite, not {value:g}")


def _source(
    *,
    trace: Path | None,
    workload: str | None,
    rate: float | None,
    arrivals: str | None,
    duration: float | None,
    limit: int | None,
    closed_loop: bool,
) -> "WorkloadSource":
    from ballast_sim.naming import known_names
    from ballast_sim.simulation.inputs.source import WorkloadSource
    from ballast_sim.workloads import GENERATORS, ArrivalProcess

    if (trace is None) == (workload is None):
        raise ValueError("--trace, --workload: give one of them, a trace file or the name of a built-in workload")
    if workload is not None and workload not in GENERATORS:
        raise ValueError(f"--workload: unknown workload {workload!r}; {known_names(workload, GENERATORS)}")
    return WorkloadSource(
        trace=trace,
        workload=workload or "",
        rate_rps=rate,
        duration_s=duration,
        limit=limit,
        closed_loop=closed_loop,
        arrivals=ArrivalProcess.parse(arrivals) if arrivals is not None else None,
    )


def _policies(text: str | None, path: Path | None) -> "tuple[PolicyChoice, ...]":
    from ballast_core.policies.placement.registry import PLACEMENTS
    from ballast_sim.simulation.policies.choice import parse_policies, read_policy_file

    pairs = (*(parse_policies(text) if text is not None else ()), *(read_policy_file(path) if path else ()))
    names = [pair.name for pair in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--policy, --policy-file: {name!r} is named twice; rows could not be told apart")
    if not pairs:
        raise ValueError(f"--policy: name one or more of {', '.join(sorted(PLACEMENTS))}, or give --policy-file")
    return pairs


def _bindings(text: str) -> "tuple[Binding, ...]":
    from ballast_core.model import Binding

    if text == "both":
        return (Binding.EARLY, Binding.LATE)
    if text not in set(Binding):
        raise ValueError(f"--binding: must be early, late or both, not {text!r}")
    return (Binding(text),)


def _max_tokens(text: str) -> int | None:
    if text in ("none", "exact"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--max-tokens: must be none, exact or a number of tokens above 0, not {text!r}")
    return int(text)


def _failures(path: Path | None, machines: "tuple[Machine, ...]") -> "tuple[Failure, ...]":
    from ballast_sim.simulation.inputs.failures import read_failures

    if path is None:
        return ()
    try:
        return read_failures(path, [machine.endpoint.id for machine in machines])
    except ValueError as error:
        raise ValueError(f"--failures: {error}") from None


def _with_dashes(message: str) -> str:
    """The simulator's own words for its arguments as the options that set them."""
    renamed = {
        "endpoints:": "--endpoints:",
        "slo:": "--slo:",
        "arrivals:": "--arrivals:",
        "rate_rps:": "--rate:",
        "scrape_interval_s:": "--scrape-interval:",
        "scrape_delay_s:": "--scrape-delay:",
        "scrape_loss_ratio:": "--scrape-loss:",
        "gateways:": "--gateways:",
        "physics:": "--physics:",
        "engine_policy:": "--engine-policy:",
        "lengths:": "--lengths:",
        "local_batching:": "--local-batching:",
        "cut_tokens:": "--cut-tokens:",
        "kv_transfer:": "--kv-transfer:",
        "engine_scheduler:": "--engine-scheduler:",
    }
    first, _, rest = message.partition(" ")
    return f"{renamed.get(first, first)} {rest}"


# --- running and writing ----------------------------------------------------------------------------------------------


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
        from ballast_sim.simulation.report import render

        write_output("--html", html_out, render(asked.setup, outcomes))
        view.note(f"report: {html_out}")
