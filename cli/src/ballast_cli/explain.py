"""`ballast explain`: what a stored decision went by, and why it was taken."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

_CALL_S = 10.0

app = typer.Typer(help="Explain stored decisions.", no_args_is_help=True)


@app.callback()
def explain() -> None:
    """Explain stored decisions."""


@app.command("scaling")
def scaling_command(
    of: Annotated[
        str,
        typer.Argument(
            metavar="POOL|FILE",
            help="A ServingPool of the cluster, or a file that is there: a decision, a list of them, or what "
            "`simulate --json` wrote; - is stdin.",
        ),
    ],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Of the ServingPool. Left out, the one of the context in KUBECONFIG."),
    ] = None,
    at: Annotated[
        float | None, typer.Option(help="Only the last decision until this time, in seconds of its clock.")
    ] = None,
) -> None:
    """Print scaling decisions: inputs, candidates with their rehearsals, what was chosen and why, "why not" included.

    A ServingPool's are read with the credentials of kubectl. Exit status: 0, 2 where there is no decision.
    """
    from ballast_core.policies.scaling.records import explained

    text = _text(of, namespace)
    try:
        found = _decisions(json.loads(text))
        if at is not None:
            found = [each for each in found if each["at_s"] <= at][-1:]
        lines = [line for each in found for line in explained(each)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _refuse(f"{of}: holds no scaling decision as Ballast writes it ({error})")
    if not lines:
        _refuse(f"{of}: holds no scaling decision" + ("" if at is None else f" until {at:g} s"))
    for line in lines:
        typer.echo(line)


def _text(of: str, namespace: str | None) -> str:
    """JSON of decisions: of a file, if there is one of that name and no namespace was given, else of a ServingPool."""
    if of == "-":
        return "" if sys.stdin is None else sys.stdin.read()
    if namespace is None and (os.path.exists(of) or "/" in of or "." in of):
        try:
            return Path(of).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            _refuse(f"{of}: cannot be read ({error})")
    return _of_cluster(of, namespace)


def _of_cluster(serving_pool: str, namespace: str | None) -> str:
    from ballast_api import names
    from ballast_operator.api.api_failure import ApiFailure
    from ballast_operator.api.cluster import Cluster, context_namespace, load_credentials
    from ballast_operator.kinds import CONFIG_MAP
    from ballast_operator.scaling.records import RECORDS

    try:
        load_credentials()
        where = context_namespace() if namespace is None else namespace
        found = Cluster(timeout_s=_CALL_S, connections=1).get(CONFIG_MAP, where, names.scaling_name(serving_pool))
    except ApiFailure as error:
        _refuse(f"no file is called {serving_pool}, and the cluster was not read: {error}")
    if found is None:
        _refuse(
            f"namespace {where} holds no decision for a ServingPool {serving_pool}: its ratio.mode is Off, "
            f"or it is another namespace (--namespace)"
        )
    return str((found.get("data") or {}).get(RECORDS, "[]"))


def _decisions(value: Any) -> list[dict[str, Any]]:
    """The decisions in a JSON value."""
    if isinstance(value, list):
        return [each for item in value for each in _decisions(item)]
    if "decisions" in value:
        return _decisions(value["decisions"])
    if "autoscaling" in value:
        return _decisions(value["autoscaling"])
    return [value] if "reason" in value else []


def _refuse(problem: str) -> NoReturn:
    typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(2)
