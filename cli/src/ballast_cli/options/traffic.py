"""The requests: a trace file or a built-in workload, how fast, how much."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ballast_cli.options.declaring import Sets
from ballast_cli.options.trace_files import HELP, trace_file

if TYPE_CHECKING:
    from ballast_sim.simulation.inputs.source import WorkloadSource
    from ballast_sim.workloads import ArrivalProcess


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What makes a `WorkloadSource`."""

    trace: Annotated[
        Path | None,
        typer.Option(parser=trace_file, metavar="FILE|URL", help=HELP),
    ] = None
    workload: Annotated[str | None, typer.Option(help="Built-in workload instead; see `ballast workloads`.")] = None
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second of a built-in workload, or of a file of lengths."),
        Sets("rate_rps"),
    ] = None
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds of arrivals. Default: a whole trace; 600 of a built-in workload."),
        Sets("duration_s"),
    ] = None
    limit: Annotated[int | None, typer.Option(help="At most so many requests.")] = None

    def source(
        self, *, arrivals: "ArrivalProcess | None" = None, closed_loop: bool = False, default_limit: int | None = None
    ) -> "WorkloadSource":
        """Raises SettingError. `default_limit` is that of a built-in workload where nothing else bounds it."""
        from ballast_sim.naming import known_names
        from ballast_sim.settings import SettingError
        from ballast_sim.simulation.inputs.source import WorkloadSource
        from ballast_sim.workloads import GENERATORS

        if (self.trace is None) == (self.workload is None):
            raise SettingError(
                ("trace", "workload"), "give one of them, a trace file or the name of a built-in workload"
            )
        if self.workload is not None and self.workload not in GENERATORS:
            raise SettingError(
                "workload",
                f"unknown workload {self.workload!r}; " + known_names(self.workload, GENERATORS, "ballast workloads"),
            )
        bounded = self.trace is not None or self.duration is not None or self.limit is not None
        return WorkloadSource(
            trace=self.trace,
            workload=self.workload or "",
            rate_rps=self.rate,
            duration_s=self.duration,
            limit=self.limit if bounded else default_limit,
            closed_loop=closed_loop,
            arrivals=arrivals,
        )


@dataclass(frozen=True, kw_only=True)
class SimulatedTraffic(Traffic):
    """Also how arrivals come."""

    arrivals: Annotated[
        str | None,
        typer.Option(help="Arrivals where --rate counts: poisson, gamma:CV or burst:SIZE. Default: poisson."),
    ] = None
    closed_loop: Annotated[
        bool, typer.Option("--closed-loop", help="A session's next turn waits for the end of the one before.")
    ] = False

    def simulated(self) -> "WorkloadSource":
        """`source` with these. Raises SettingError."""
        from ballast_sim.workloads import ArrivalProcess

        process = None if self.arrivals is None else ArrivalProcess.parse(self.arrivals)
        return self.source(arrivals=process, closed_loop=self.closed_loop)
