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
from ballast_sim.load import LoadReport
from ballast_sim.simulation.inputs.objective import Objective

_PERCENTILES = ("p50", "p90", "p99")


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
    row(f"goodput, requests/s ({describe(objective)})", [_number(r.goodput_rps) for r in reports.values()])
    row("attainment", ["-" if r.attainment is None else f"{r.attainment:.1%}" for r in reports.values()])
    return table


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
  more load:       {ballast} demo --rate-scale 1.2
  a trace:         {ballast} demo --trace FILE (CSV or JSONL, see docs/engine-sim.md)
  other hardware:  copy {manifests}, edit its servingpool.yaml, then {ballast} demo --manifests COPY
  one engine:      {ballast} engine-sim serve tiny --profile h20-qwen3-32b
  a cluster:       make cluster-up, then helm install ballast charts/ballast"""
