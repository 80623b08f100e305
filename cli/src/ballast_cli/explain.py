"""`ballast explain`: what a stored decision went by, and why it was taken."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(help="Explain stored decisions.", no_args_is_help=True)


@app.callback()
def explain() -> None:
    """Explain stored decisions."""


@app.command("scaling")
def scaling_command(
    records: Annotated[
        Path, typer.Argument(help="JSON: a decision, a list of them, or what `simulate --json` wrote; - is stdin.")
    ],
    at: Annotated[
        float | None, typer.Option(help="Only the last decision until this time, in seconds of its clock.")
    ] = None,
) -> None:
    """Print scaling decisions: inputs, candidates with their rehearsals, what was chosen and why, "why not" included.

    Exit status: 0, 2 for a file that holds no decision.
    """
    from ballast_core.policies.scaling.records import explained

    try:
        text = sys.stdin.read() if str(records) == "-" else records.read_text(encoding="utf-8")
        found = _decisions(json.loads(text))
        if at is not None:
            found = [each for each in found if each["at_s"] <= at][-1:]
        lines = [line for each in found for line in explained(each)]
    except (OSError, UnicodeDecodeError) as error:
        _refuse(f"{records}: cannot be read ({error})")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _refuse(f"{records}: holds no scaling decision as Ballast writes it ({error})")
    if not lines:
        _refuse(f"{records}: holds no scaling decision" + ("" if at is None else f" until {at:g} s"))
    for line in lines:
        typer.echo(line)


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
