"""The demo's final output."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which

from rich.table import Table

from ballast_sim.capacity import Capacity
from ballast_sim.comparing import NO_DIFFERENCE, attained, waited
from ballast_sim.load import MOST_LATE_S, LoadReport
from ballast_sim.simulation.inputs.objective import Objective

_PERCENTILES = ("p50", "p99")


def comparison(reports: Mapping[str, LoadReport], objective: Objective, *, planned: int) -> Table:
    """One column a policy, one row a figure. Latencies in milliseconds. `planned` requests were to be answered."""
    table = Table(title="The same requests under each policy", title_justify="left")
    table.add_column("")
    for name in reports:
        table.add_column(name, justify="right")

    def row(label: str, values: Sequence[str]) -> None:
        table.add_row(label, *values)

    row("requests completed", [f"{r.completed} of {planned}" for r in reports.values()])
    latencies = {
        "TTFT": [report.ttft_s for report in reports.values()],
        "TPOT": [report.tpot_s for report in reports.values()],
        "E2E": [report.e2e_s for report in reports.values()],
    }
    for label, found in latencies.items():
        for percentile in _PERCENTILES:
            values = [figures.get(percentile) for figures in found]
            row(f"{label} {percentile}, ms", ["-" if v is None else f"{v * 1e3:,.1f}" for v in values])
    row("output tokens/s", [f"{r.throughput_tok_s:,.0f}" for r in reports.values()])
    row("goodput, requests/s", [_number(r.goodput_rps) for r in reports.values()])
    row("within the SLO", ["-" if r.attainment is None else f"[bold]{r.attainment:.1%}[/]" for r in reports.values()])
    table.caption, table.caption_justify = f"SLO: {describe(objective)}", "left"
    return table


def verdict(reports: Mapping[str, LoadReport], objective: Objective) -> tuple[str, str]:
    """The sentence to remember, and its style on a terminal. No verdict from a machine that did not keep time."""
    late_s = max((report.late_s.get("p99", 0.0) for report in reports.values()), default=0.0)
    if late_s > MOST_LATE_S:
        words = (
            f"No verdict: this machine was too slow. Requests left up to {late_s * 1e3:,.0f} ms late (P99; "
            f"{MOST_LATE_S * 1e3:.0f} may be), so waits are partly its own. Close other programs and try again; "
            "`ballast simulate` shows the same on a clock of its own."
        )
        return words, "bold yellow"
    if any(report.interrupted or report.failed for report in reports.values()):
        return "No verdict: not every request was answered.", "bold yellow"
    if objective == Objective():
        times_s = {name: report.ttft_s["p99"] for name, report in reports.items() if report.ttft_s}
        return waited(times_s, "P99 TTFT"), "bold"
    shares = {name: [report.attainment or 0.0] for name, report in reports.items()}
    words = attained(shares)
    return words, "bold green" if len(shares) > 1 and not words.startswith(NO_DIFFERENCE) else "bold"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def describe(objective: Objective) -> str:
    """The thresholds in words."""
    named = (("TTFT", objective.ttft_s), ("TPOT", objective.tpot_s), ("E2E", objective.e2e_s))
    return ", ".join(f"{name} <= {limit:g} s" for name, limit in named if limit is not None) or "no SLO"


def load_words(capacity: Capacity, rate_rps: float, share: float, *, rate_scale: float = 1.0) -> str:
    """How hot a workload is for the fleet; beyond `share` of its capacity, with the rate that would fit.

    `rate_scale` is what `rate_rps` has been multiplied by already.
    """
    load = capacity.load_ratio(rate_rps)
    words = (
        f"{rate_rps:.2f} requests/s, about {load:.0%} of the {capacity.rps:.2f} that the fleet carries by arithmetic "
        f"({capacity.bottleneck} is the narrower stage)"
    )
    if load <= share:
        return words
    fitting = capacity.rps * share
    fitting_scale = math.floor(100 * rate_scale * fitting / rate_rps) / 100  # not rounded up: it would not fit
    return (
        f"[bold red]too hot:[/] {words}. Expect queues and failures; up to {fitting:.2f} requests/s would fit, "
        f"so try --rate-scale {fitting_scale:.2f}"
    )


def next_steps(manifests: Path) -> str:
    """What to try next, with the command as this shell finds it: a virtual environment need not be on its path."""
    beside = Path(os.path.relpath(Path(sys.executable).parent / "ballast"))
    ballast = "ballast" if which("ballast") or not beside.exists() else str(beside)
    return f"""What to try next
  a quiet fleet:   {ballast} demo --case quiet (make demo DEMO=quiet)
  more load:       {ballast} demo --rate-scale 1.2
  a trace:         {ballast} demo --trace FILE (CSV or JSONL, see docs/simulate/traffic.md)
  other hardware:  copy {manifests}, edit its servingpool.yaml, then {ballast} demo --manifests COPY
  one engine:      {ballast} engine-sim serve tiny --profile h20-qwen3-32b
  a cluster:       make cluster-up, then helm install ballast charts/ballast"""
