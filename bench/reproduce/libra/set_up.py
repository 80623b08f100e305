"""What Libra's experiments share: systems, figures, and a run that searches for the most that a system serves."""

from __future__ import annotations

from bench.reproduce.form import Run
from bench.reproduce.libra.runs import System, capacity, systems
from bench.reproduce.tasks import Called

SYSTEMS = systems()
MIXED = "libra-code+libra-reasoning"
LASTS_S = {"libra-reasoning": 300.0, "P219/D1467": 300.0, "P1024/D1024": 300.0, MIXED: 240.0}
"""Arrivals of a probe: some times as long as a request runs; else 90 s."""
FIGURES = (
    "arrivals_s",
    "e2e_p99_s",
    "capacity_rps",
    "goodput_most_tok_s",
    "tbt_p99_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "goodput_tok_s",
    "split_ratio",
)
MOST_GOODPUT = (
    "The most goodput is that of the rates which the search for the capacity tries; few are far above it, so who still "
    "gains there is cut short."
)
"""Of `goodput_most_tok_s`, for the texts of experiments that show it."""
FIXED_FIGURES = (
    "arrivals_s",
    "e2e_p99_s",
    "tbt_p99_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "goodput_tok_s",
    "late_ratio",
    "kv_exposed_s",
    "throughput_tok_s",
)


def capacity_run(
    name: str, system: System, workload: str, start_rps: float, *, reduced: bool = True, tbt: bool = True
) -> Run:
    """A search for the highest rate that a system serves, with its figures there."""
    arguments = {
        "system": system,
        "workload": workload,
        "start_rps": start_rps,
        "tbt": tbt,
        "lasts_s": LASTS_S.get(workload, 90.0),
    }
    return Run(name, Called(capacity, arguments), reduced, cost_s=9.0)
