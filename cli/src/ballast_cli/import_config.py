"""`ballast import`: configurations of other pickers, as far as they map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ballast_cli.importing.endpoint_picker import Imported

app = typer.Typer(help="Put another picker's configuration into Ballast's words.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Makes `endpoint-picker-config` a sub-command, although it is the only one."""


@app.command("endpoint-picker-config")
def endpoint_picker_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An EndpointPickerConfig of llm-d's router.")],
    name: Annotated[str, typer.Option(help="Name of the SchedulingPolicy.")] = "imported",
) -> None:
    """Print a SchedulingPolicy with what maps of an EndpointPickerConfig (llm-d.ai/v1alpha1).

    Comments say plug-in by plug-in what is the same, what is near and how it differs, and what is left out.
    docs/importing.md has the whole table.
    """
    import yaml

    from ballast_api.errors import InvalidInput
    from ballast_cli.importing.endpoint_picker import import_config

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text in UTF-8"
        typer.echo(f"error: {file}: cannot be read: {reason}", err=True)
        raise typer.Exit(2) from None
    try:
        imported = import_config(text, source=str(file))
        manifest = imported.manifest(name)
    except InvalidInput as error:
        for line in str(error).splitlines():
            typer.echo(f"error: {line}", err=True)
        raise typer.Exit(2) from None
    typer.echo(_account(imported) + yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True), nl=False)


def _account(imported: Imported) -> str:
    """What became of everything, as comments of YAML."""
    import yaml

    lines = ["# What became of the file:"]
    lines += [f"#   {each.fit:<5}  {each.path}: {each.what}: {each.said}" for each in imported.findings]
    if imported.settings:
        lines.append("# For `gateway.settings` of the ServingPool, or the gateway's file:")
        text = yaml.safe_dump(imported.settings, sort_keys=False, allow_unicode=True)
        lines += [f"#   {line}" for line in text.splitlines()]
    return "".join(" ".join(line.splitlines()) + "\n" for line in lines)
