"""`ballast load`: replay a workload against an OpenAI-compatible server and report what it did."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ballast_cli.options.declaring import Sets, in_options
from ballast_cli.options.trace_files import HELP, trace_file

if TYPE_CHECKING:
    from ballast_sim.load import LoadReport, LoadSettings, Progress
    from ballast_sim.workloads import WorkloadRequest


_ALIKE = 0.05
"""Prompts may be so much longer than the workload's: some tokenizers begin each with a token of their own."""
_OTHER_FILES = 256
"""Beside connections."""


def load_command(
    *,
    url: Annotated[str, typer.Option(help="Base URL of the server, such as http://127.0.0.1:8000.")],
    model: Annotated[str, typer.Option(help="Model name to ask for.")],
    trace: Annotated[Path | None, typer.Option(parser=trace_file, metavar="FILE|URL", help=HELP)] = None,
    workload: Annotated[
        str | None, typer.Option(help="Built-in workload, where there is no --trace. Default: chat.")
    ] = None,
    duration: Annotated[float, typer.Option(help="Seconds of the workload to send."), Sets("duration_s")] = 60.0,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second of a built-in workload."), Sets("rate_rps")
    ] = None,
    rate_scale: Annotated[float, typer.Option(help="Multiply the rate of arrivals.")] = 1.0,
    time_scale: Annotated[
        float, typer.Option(help="Stretch time, as the engine-sims' --time-scale; reported times are divided by it.")
    ] = 1.0,
    limit: Annotated[int | None, typer.Option(help="Send at most so many requests.")] = None,
    slo: Annotated[str | None, typer.Option(help="Thresholds in seconds: ttft=2,tpot=0.05.")] = None,
    prompts: Annotated[str, typer.Option(help="Prompts as token `ids` or as `text`.")] = "ids",
    timeout: Annotated[float, typer.Option(help="Seconds for one request."), Sets("timeout_s")] = 600.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and lengths.")] = 0,
    prompt_seed: Annotated[
        int | None,
        typer.Option(help="Seed of the prompts' tokens. Default: another one for each run, so that no cache has them."),
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="BALLAST_API_KEY", help="Bearer token.")] = None,
    json_out: Annotated[str | None, typer.Option("--json", help="Write the report to a file, or - for stdout.")] = None,
) -> None:
    """Replay a workload, open loop: requests leave on time, however slow the answers. Ctrl-C still reports.

    Exit status: 0 when every request completed, 1 when some failed or Ctrl-C came first, 2 for options that cannot
    work.
    """
    from ballast_cli.output import check_outputs
    from ballast_sim.load import LoadSettings
    from ballast_sim.settings import SettingError
    from ballast_sim.simulation.inputs.objective import Objective
    from ballast_sim.workloads import load_workload

    try:
        check_outputs({"--json": json_out}, [trace])
        if prompts not in ("ids", "text"):
            raise SettingError("prompts", f"must be ids or text, not {prompts!r}")
        settings = LoadSettings(
            url=url,
            model=model,
            time_scale=time_scale,
            objective=Objective.parse(slo) if slo else None,
            prompt_kind="text" if prompts == "text" else "ids",
            seed=seed,
            prompt_seed=prompt_seed,
            timeout_s=timeout,
            api_key=api_key,
        )
        if trace is not None and workload is not None:
            raise SettingError(("trace", "workload"), "give one of them, a trace or the name of a built-in workload")
        requests = load_workload(
            trace=trace,
            workload=workload or "chat",
            duration_s=duration,
            rate_rps=rate,
            rate_scale=rate_scale,
            limit=limit,
            seed=seed,
        )
        if not requests:
            raise SettingError("duration_s", f"no request arrives within {duration:g} s; make it longer")
        report = _run(settings, requests)
        _write(report, json_out)
    except ValueError as error:
        typer.echo(f"error: {in_options(error, load_command)}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(1 if report.failed or report.interrupted else 0)


def _run(settings: "LoadSettings", requests: "Sequence[WorkloadRequest]") -> "LoadReport":
    import asyncio
    import signal

    import uvloop

    from ballast_sim.load import run_load

    async def main() -> "LoadReport":
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await run_load(settings, requests, _show if sys.stderr.isatty() else None, stop)

    _allow_files(settings.max_in_flight + _OTHER_FILES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _allow_files(wanted: int) -> None:
    """Raise the limit on open files, as far as may be: each request in flight has a connection."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _show(progress: "Progress") -> None:
    line = (
        f"\r{progress.elapsed_s:6.0f} s  sent {progress.sent}/{progress.total}  in flight {progress.in_flight}  "
        f"done {progress.completed}  failed {progress.failed}  tokens {progress.output_tokens}   "
    )
    sys.stderr.write(line)
    sys.stderr.flush()


def _write(report: "LoadReport", json_out: str | None) -> None:
    """Raises ValueError where the file cannot be written."""
    from ballast_cli.output import write_output

    if sys.stderr.isatty():
        sys.stderr.write("\n")
    if json_out is not None:
        try:
            write_output("--json", json_out, json.dumps(report.as_json(), indent=2) + "\n")
        except ValueError:
            _print(report)  # a run is not to be lost
            raise
    else:
        _print(report)


def _print(report: "LoadReport") -> None:
    for line in report_lines(report):
        typer.echo(line)


def report_lines(report: "LoadReport") -> list[str]:
    """The report for people; milliseconds."""
    from ballast_sim.load import MOST_LATE_S

    lines = [f"{report.requests} requests, {report.completed} completed, {report.failed} failed"]
    if report.interrupted:
        lines.append("interrupted: requests that were under way or not sent yet are not counted")
    for name, values in (("TTFT", report.ttft_s), ("TPOT", report.tpot_s), ("E2E", report.e2e_s)):
        if values:
            figures = "  ".join(f"{key} {values[key] * 1e3:.1f}" for key in ("mean", "p50", "p90", "p99"))
            lines.append(f"{name} ms: {figures}")
    lines.append(f"{report.throughput_tok_s:.0f} output tokens/s, {report.completed_rps:.2f} requests/s")
    if report.goodput_rps is not None and report.attainment is not None:
        lines.append(f"goodput {report.goodput_rps:.2f} requests/s, attainment {report.attainment:.1%}")
    late_s = report.late_s.get("p99", 0.0)
    if late_s > MOST_LATE_S:
        lines.append(
            f"this machine was too slow: requests left up to {late_s * 1e3:,.0f} ms late (P99), "
            "so waits are partly its own"
        )
    if abs(report.input_tokens - report.asked_input_tokens) > _ALIKE * report.asked_input_tokens:
        lines.append(
            f"the server counted {report.input_tokens:,} prompt tokens where the workload has "
            f"{report.asked_input_tokens:,}: with --prompts ids they are alike"
        )
    if report.time_scale != 1:
        lines.append(f"time scale {report.time_scale:g}: times above are wall times divided by it")
    lines += [
        f"  {kind}: {count}, the first one: {_plain(report.reasons[kind])}"
        for kind, count in sorted(report.errors.items())
    ]
    return lines


def _plain(reason: str) -> str:
    """A server's words on one line of a terminal."""
    return "".join(character if character.isprintable() else " " for character in reason[:200])
