"""`ballast calibrate`: how far off are the gateway's beliefs on my traffic?"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ballast_cli.options.declaring import Sets, in_options, refuse_given, with_options
from ballast_cli.options.hardware import Hardware
from ballast_cli.options.traffic import Traffic

if TYPE_CHECKING:
    from ballast_sim.simulation.inputs.source import WorkloadSource
    from ballast_sim.simulation.policies.choice import PolicyChoice

GENERATED_REQUESTS = 10_000
"""Of a built-in workload, where neither --limit nor --duration is given."""


@dataclass(frozen=True, kw_only=True)
class ScoredTraffic(Traffic):
    """As much as is scored."""

    duration: Annotated[float | None, typer.Option(help="Seconds of arrivals."), Sets("duration_s")] = None
    limit: Annotated[
        int | None, typer.Option(help="At most so many requests. Default: a whole trace; 10,000 of a workload.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ScoredFleet:
    """A fleet in which the other beliefs are scored."""

    endpoints: Annotated[
        str | None, typer.Option(help="Also simulate this fleet, such as 2P@a100-qwen3-32b,1D@h20-qwen3-32b.")
    ] = None
    policy: Annotated[str, typer.Option(help="Placement in that fleet: NAME, or PREFILL/DECODE.")] = "ballast"
    rate_scale: Annotated[float, typer.Option(help="Multiply the rate of arrivals in that fleet.")] = 1.0
    simulate: Annotated[int, typer.Option(help="Requests that the fleet is simulated with, at most.", min=2)] = 2000


@with_options
def calibrate_command(
    *,
    traffic: ScoredTraffic,
    held_back: Annotated[float, typer.Option(help="Share of the requests, the last ones, that is only scored.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of lengths and arrivals that are drawn, and of max_tokens.")] = 0,
    fleet: ScoredFleet,
    hardware: Hardware,
    json_out: Annotated[str | None, typer.Option("--json", help="Write an object to a file, or - for stdout.")] = None,
) -> None:
    """Learn beliefs from the first part of a workload as a gateway would, and score them on the rest.

    Survival curves of output length always; with --endpoints also step times, prefill times, cached prefixes and
    projected load, against what simulated engines do. docs/calibration.md explains the figures.

    Exit status: 0, or 2 for input that cannot work.
    """
    from ballast_cli.calibrate_view import CalibrationView
    from ballast_cli.output import check_outputs, write_output
    from ballast_sim.settings import SettingError
    from ballast_sim.simulation.policies.choice import parse_policies
    from ballast_sim.simulation.runs.experiment import versions

    view = CalibrationView(plain_stdout=json_out != "-")
    try:
        check_outputs({"--json": json_out}, [traffic.trace, *(hardware.profiles or ())])
        pairs = parse_policies(fleet.policy)
        if len(pairs) > 1:
            raise SettingError("policy", f"name one placement, not {fleet.policy!r}")
        if fleet.endpoints is None:
            for group in (hardware, fleet):
                refuse_given(group, "a fleet; give --endpoints, too")
        source = traffic.source(default_limit=GENERATED_REQUESTS)
        figures: dict[str, Any] = {
            "workload": source.name,
            "seed": seed,
            **_lengths(source, held_back, seed),
            "fleet": _fleet(source, fleet=fleet, hardware=hardware, pair=pairs[0], seed=seed),
            "versions": versions(),
        }
        if json_out is not None:
            write_output("--json", json_out, json.dumps(figures, indent=1, allow_nan=False) + "\n")
    except ValueError as error:
        view.error(in_options(error, calibrate_command))
        raise typer.Exit(2) from None
    view.show(figures)


def _lengths(source: "WorkloadSource", held_back: float, seed: int) -> dict[str, Any]:
    from ballast_sim.calibration import PAPER_FIGURES, LengthSettings, score_lengths, workload_in_order
    from ballast_sim.calibration.figures import length_figures
    from ballast_sim.settings import SettingError

    if not 0 < held_back < 1:
        raise SettingError("held_back", f"must be above 0 and below 1, not {held_back:g}")
    requests = workload_in_order(source, seed)
    if len(requests) < 2:
        raise SettingError(
            "workload" if source.trace is None else "trace",
            f"{source.name}: {len(requests)} requests cannot be split in two parts; give more",
        )
    scores = score_lengths(requests, LengthSettings(held_back_ratio=held_back, seed=seed))
    return {
        "requests": len(requests),
        "held_back_ratio": held_back,
        "paper": None if source.trace is not None else PAPER_FIGURES.get(source.workload),
        "lengths": [length_figures(score) for score in scores],
    }


def _fleet(
    source: "WorkloadSource",
    *,
    fleet: ScoredFleet,
    hardware: Hardware,
    pair: "PolicyChoice",
    seed: int,
) -> list[dict[str, Any]]:
    """Scores with known profiles and with none; nothing where no fleet is asked for."""
    from dataclasses import replace

    from ballast_sim.calibration import predict_and_measure
    from ballast_sim.calibration.figures import fleet_figures
    from ballast_sim.simulation.runs.comparison import check_fits

    if fleet.endpoints is None:
        return []
    machines = hardware.machines(fleet.endpoints)
    short = replace(source, limit=fleet.simulate if source.limit is None else min(fleet.simulate, source.limit))
    check_fits(machines, short, seed)
    load = short.load(seed, fleet.rate_scale)
    return [
        {
            "endpoints": fleet.endpoints,
            "policy": pair.placements,
            "rate_rps": load.rate_rps,
            **fleet_figures(predict_and_measure(machines, load, pair, profiles_known=known, seed=seed)),
        }
        for known in (True, False)
    ]
