"""An open-loop load generator for OpenAI-compatible servers: it sends at the workload's times, however slow
the answers are.

`run_load` does the work; the report is plain data. It shares no code with the servers that it measures.
"""

from ballast_sim.load.generator import LoadSettings, Progress, run_load
from ballast_sim.load.report import MOST_LATE_S, Failure, LoadReport, RequestResult, build_report

__all__ = [
    "MOST_LATE_S",
    "Failure",
    "LoadReport",
    "LoadSettings",
    "Progress",
    "RequestResult",
    "build_report",
    "run_load",
]
