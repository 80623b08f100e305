"""`ballast conformance`: does a picker keep to its protocol?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ballast_cli.output import check_outputs, write_output

if TYPE_CHECKING:
    from ballast_conformance.bench import Address, Fleet, Plan
    from ballast_conformance.case import Case, Result

app = typer.Typer(help="Check that a part of a serving stack keeps to its protocol.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Makes `epp` a sub-command, although it is the only one."""


@app.command("epp")
def epp_command(
    *,
    target: Annotated[
        str | None, typer.Argument(metavar="HOST:PORT", help="Where the picker serves ext_proc, such as 10.0.0.7:9002.")
    ] = None,
    endpoints: Annotated[
        str | None,
        typer.Option(help="All endpoints that may be picked: ip:port,ip:port. Without it, those found by asking."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask for. Without it, the first that an endpoint's /v1/models names.")
    ] = None,
    health: Annotated[
        str | None, typer.Option(help="HOST:PORT of gRPC health. Without it, port 9003, or else that of ext_proc.")
    ] = None,
    tls: Annotated[
        bool | None, typer.Option("--tls/--plaintext", help="With TLS (any certificate) or without; else found out.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one reply may take.", min=0.01)] = 5.0,
    only: Annotated[
        list[str] | None, typer.Option(help="Cases to run, as a shell pattern such as 'subset.*'; repeatable.")
    ] = None,
    flood: Annotated[
        int, typer.Option(help="Keep up to so many requests in flight until one is shed; 0 sheds none.", min=0)
    ] = 0,
    objective: Annotated[str | None, typer.Option(help="Name of the objective of those, such as one to shed.")] = None,
    streams: Annotated[int, typer.Option(help="Streams at the same time on one connection.", min=1)] = 32,
    large_bytes: Annotated[int, typer.Option(help="Size of a large body.", min=100)] = 1 << 20,
    json_out: Annotated[str | None, typer.Option("--json", help="Write results to a file, or - for stdout.")] = None,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases, and ask nobody.")] = False,
) -> None:
    """Ask an endpoint picker (EPP) for all that the Gateway API Inference Extension's protocol says of it.

    docs/conformance.md says how. Plays Envoy: sends requests to the picker, and none to engines but GET /v1/models.

    Exit status: 0 when no MUST failed, 1 when one did, 2 for options that cannot work and pickers that do not answer.
    """
    import asyncio

    from ballast_conformance import finding, report
    from ballast_conformance.bench import Plan
    from ballast_conformance.suite import chosen
    from ballast_conformance.verdicts import Level

    try:
        cases = chosen(only or ())
        if list_cases:
            for case in cases:
                typer.echo(f"{case.level:6}  {case.id:34}  {case.cites}: {case.requires}")
            return
        if target is None:
            raise ValueError("name the picker: HOST:PORT")
        check_outputs({"--json": json_out})
        plan = Plan(timeout_s=timeout, large_bytes=large_bytes, streams=streams, flood=flood, objective=objective)
        told = tuple(entry.strip() for entry in (endpoints or "").split(",") if entry.strip())
        for_people = json_out != "-"

        def show(result: Result) -> None:
            if for_people:
                typer.echo(report.line(result))

        picker, fleet, results = asyncio.run(
            _run(
                _address(target, "HOST:PORT"),
                None if health is None else _address(health, "--health"),
                plan,
                tls=tls,
                model=model,
                endpoints=told,
                cases=cases,
                on_result=show,
            )
        )
        if for_people:
            typer.echo(report.summary(results))
        if json_out is not None:
            write_output("--json", json_out, json.dumps(report.document(picker, fleet, results), indent=2) + "\n")
    except (ValueError, finding.NotFound) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(1 if report.failed(results, Level.MUST) else 0)


async def _run(
    at: tuple[str, int],
    health: tuple[str, int] | None,
    plan: Plan,
    *,
    tls: bool | None,
    model: str | None,
    endpoints: tuple[str, ...],
    cases: tuple[Case, ...],
    on_result: Callable[[Result], None],
) -> tuple[Address, Fleet, list[Result]]:
    from ballast_conformance import finding, suite

    picker = await finding.with_transport(*at, tls, plan.timeout_s)
    health_at = await finding.health(picker, health, plan.timeout_s)
    fleet = await finding.fleet(picker, plan, model=model, endpoints=endpoints)
    transport = "TLS" if picker.tls else "without TLS"
    found = f"health {health_at or 'not found'}, model {fleet.model}, endpoints {', '.join(fleet.endpoints)}"
    typer.echo(f"picker {picker}, {transport}, {found}", err=True)
    return picker, fleet, await suite.run(picker, health_at, fleet, plan, cases=cases, on_result=on_result)


def _address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{option}: {text!r} is not HOST:PORT")
    return host, int(port)
