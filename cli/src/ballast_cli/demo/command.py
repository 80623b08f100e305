"""The options of `ballast demo`."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    *,
    manifests: Annotated[
        Path | None,
        typer.Option(help="Folder with a ServingPool and what it refers to. Default: the quickstart's manifests."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Placements to compare, such as round-robin,least-requests.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Trace file to replay in place of the workload.")] = None,
    workload: Annotated[str, typer.Option(help="Built-in workload.")] = "chat",
    duration: Annotated[float, typer.Option(help="Seconds of the workload, for each policy.")] = 60.0,
    rate_scale: Annotated[float, typer.Option(help="Multiply the rate of arrivals.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and prompts.")] = 0,
) -> None:
    """Serve a small fleet on this machine and compare placement policies. No cluster, no GPU, no data file."""
    from ballast_cli.demo.quickstart import quickstart_folder
    from ballast_cli.demo.session import DemoOptions, run_demo

    options = DemoOptions(
        manifests=manifests or quickstart_folder(),
        policy=policy,
        trace=trace,
        workload=workload,
        duration_s=duration,
        rate_scale=rate_scale,
        seed=seed,
    )
    raise typer.Exit(run_demo(options))
