"""The options of `ballast demo`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ballast_cli.options.declaring import Sets, in_options
from ballast_cli.options.trace_files import HELP, trace_file


def demo(
    *,
    case: Annotated[
        str, typer.Option(help="busy: a mixed fleet at high load. quiet: a fleet where any placement will do.")
    ] = "busy",
    manifests: Annotated[
        Path | None,
        typer.Option(help="Folder with a ServingPool of yours and what it refers to, in place of the case's."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Placements to compare, each for both stages and without limits or queue, as a plain router has it. "
            "Default: round-robin, least-requests and the manifests' whole policy."
        ),
    ] = None,
    trace: Annotated[Path | None, typer.Option(parser=trace_file, metavar="FILE|URL", help=HELP)] = None,
    workload: Annotated[
        str | None, typer.Option(help="Built-in workload, where there is no --trace. Default: chat.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds of the workload, for each policy. Default: 30."), Sets("duration_s")
    ] = None,
    rate_scale: Annotated[float, typer.Option(help="Multiply the rate of arrivals.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and prompts.")] = 0,
) -> None:
    """Serve a small fleet on this machine and compare placement policies. No cluster, no GPU, no data file.

    Engines are simulated (vLLM's scheduler with the timing of a hardware profile); the gateway, its decisions and
    every stream are real. The last line is the verdict, or says that this machine was too slow for one.
    """
    from ballast_cli.demo.cases import CASES
    from ballast_cli.demo.session import DemoOptions, run_demo

    if case not in CASES:
        raise typer.BadParameter(f"must be {' or '.join(CASES)}, not {case!r}", param_hint="--case")
    if trace is not None and workload is not None:
        raise typer.BadParameter("a trace or a built-in workload, not both", param_hint="--trace, --workload")
    chosen = CASES[case]
    own = trace is not None or workload not in (None, "chat")
    options = DemoOptions(
        says=chosen.says if manifests is None and not own else "",
        manifests=chosen.manifests if manifests is None else (manifests,),
        policy=policy,
        trace=trace,
        workload=workload or "chat",
        rate_rps=None if manifests is not None or own else chosen.rate_rps,
        duration_s=chosen.duration_s if duration is None else duration,
        rate_scale=rate_scale,
        seed=seed,
    )
    raise typer.Exit(run_demo(options, partial(in_options, command=demo)))
