"""What a run is measured by, and how many processes make it."""

from typing import Annotated

import typer

Slo = Annotated[str | None, typer.Option(help="Thresholds in seconds: ttft=2,tpot=0.05,e2e=60.")]
Jobs = Annotated[int | None, typer.Option(help="Processes at a time. Default: all cores.")]


def processes(jobs: int | None) -> int:
    """How many to start. Raises SettingError."""
    from ballast_sim.settings import SettingError
    from ballast_sim.simulation.runs.pool import default_jobs

    if jobs is not None and jobs < 1:
        raise SettingError("jobs", f"must be 1 or more, not {jobs}")
    return jobs or default_jobs()
