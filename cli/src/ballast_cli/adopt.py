"""`ballast adopt`: existing Deployments, and what stands around them, as a ServingPool. It writes nothing anywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from ballast_cli.adopting.convert import Adopted

_CALL_S: Final = 30.0


def adopt_command(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace to read; by default that of KUBECONFIG's context."),
    ] = None,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Labels of the Deployments to take.")] = "",
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", help="Read manifests from a file, or - for standard input, and no cluster."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the ServingPool; by default the InferencePool's.")] = None,
    output: Annotated[Literal["yaml"], typer.Option("--output", "-o", help="Form of the ServingPool.")] = "yaml",
) -> None:
    """Print a ServingPool that does what existing vLLM Deployments do, with their InferencePool and HTTPRoute.

    Nothing is changed, in no cluster. Standard error says what maps, what differs, what was guessed or left out, and
    the steps to switch over and back. docs/adopt.md has the whole table.
    """
    import yaml

    from ballast_api.errors import InvalidInput
    from ballast_cli.adopting.convert import adopt

    del output
    try:
        objects = _from_files(file, selector) if file else _from_cluster(namespace, selector)
        adopted = adopt(objects, name=name, namespace=namespace)
    except InvalidInput as error:
        _refuse(str(error))
    typer.echo(_account(adopted), err=True, nl=False)
    typer.echo(yaml.safe_dump(adopted.manifest, sort_keys=False, allow_unicode=True, width=120), nl=False)


def _account(adopted: Adopted) -> str:
    lines = ["What became of everything:"]
    lines += [f"  {each.fit:<7}  {each.of}: {each.said}" for each in adopted.findings]
    lines.append("To switch over:")
    lines += [f"  {number}. {step}" for number, step in enumerate(adopted.steps, 1)]
    return "".join(f"{line}\n" for line in lines)


def _from_files(files: list[str], selector: str) -> list[Any]:
    from ballast_api.errors import InvalidInput, Problem
    from ballast_api.loading import load_documents
    from ballast_cli.adopting.found import unfolded
    from ballast_cli.adopting.shapes import check_shapes

    wanted = _labels(selector)
    found: list[Any] = []
    for each in files:
        try:
            text = sys.stdin.read() if each == "-" else Path(each).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is no text in UTF-8"
            raise InvalidInput(each, [Problem("", f"cannot be read: {reason}")]) from None
        found += load_documents(text, source=each)
    objects = unfolded(found)
    check_shapes(objects)
    return [
        each
        for each in objects
        if each.get("kind") != "Deployment" or wanted.items() <= (each["metadata"].get("labels") or {}).items()
    ]


def _labels(selector: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in selector.split(",") if each]
    if any(not equals or key.endswith("!") for key, equals, _ in pairs):
        _refuse(f"--selector: with files only KEY=VALUE, ... is understood, not {selector}")
    return {key: value.removeprefix("=") for key, _, value in pairs}


def _from_cluster(namespace: str | None, selector: str) -> list[Any]:
    from ballast_operator.api.api_failure import ApiFailure
    from ballast_operator.api.cluster import Cluster, context_namespace, load_credentials
    from ballast_operator.kinds import DEPLOYMENT, HARDWARE_PROFILE, HTTP_ROUTE, INFERENCE_POOL, SERVICE, Kind

    scaler = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
    found: list[Any] = []
    try:
        load_credentials()
        cluster = Cluster(timeout_s=_CALL_S, connections=1)
        where = context_namespace() if namespace is None else namespace
        found += cluster.list(DEPLOYMENT, where, labels=selector)
        for kind in (INFERENCE_POOL, HTTP_ROUTE, SERVICE, scaler, HARDWARE_PROFILE):
            try:
                found += cluster.list(kind, where if kind.namespaced else None)
            except ApiFailure as error:
                if error.status not in (403, 404):
                    raise
                typer.echo(f"note: no {kind.kind} was read: {error}", err=True)
    except ApiFailure as error:
        _refuse(f"the cluster was not read: {error}")
    return found


def _refuse(problem: str) -> NoReturn:
    for line in problem.splitlines():
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(2)
