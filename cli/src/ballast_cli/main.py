"""The `ballast` command. Sub-commands import what they need when they run, so that `--help` stays fast."""

import errno
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from ballast_cli import (
    adopt,
    agent,
    calibrate,
    conformance,
    engine_sim,
    explain,
    gateway,
    import_config,
    listings,
    load,
    operator,
    profile,
    recommend,
    simulate,
    top,
    traffic,
    validate,
)
from ballast_cli.arithmetic import choose_arithmetic
from ballast_cli.demo import command as demo
from ballast_cli.extras import missing_extra
from ballast_cli.output import discard_standard_output


class _Commands(TyperGroup):
    """Reports a standard output without room in one line and exits with status 2."""

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename is not None:
                raise
            discard_standard_output()
            typer.echo(f"error: standard output: cannot be written: {error.strerror}", err=True)
            sys.exit(2)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TyperException as error:
            _make_plain(error)
            raise
        except ModuleNotFoundError as error:
            needed = missing_extra(ctx.invoked_subcommand, error)
            if needed is None:
                raise
            typer.echo(needed, err=True)
            raise typer.Exit(2) from None
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # at the interpreter's end it would be too late for a message

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Every command with the whole first sentence of its help, wrapped: nothing ends in dots."""
        known = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, _sentence(command.help or "")) for name, command in known if command and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _make_plain(error: Any) -> None:
    """A refusal of the option parser with what to do instead."""
    said = getattr(error, "message", "")
    if "unable to parse string" in said:
        error.message = "is not a number; write digits without a unit, the unit is in --help"
    elif said.startswith("Got unexpected extra argument"):
        error.message = f"{said}; all that it takes are options: --NAME VALUE"


def _sentence(text: str) -> str:
    """The first one; a full stop inside a name ends none."""
    return f"{' '.join(text.split()).split('. ')[0].rstrip('.')}."


app = typer.Typer(
    name="ballast",
    cls=_Commands,
    help="Keeps a fleet of prefill/decode vLLM pods in balance.",
    no_args_is_help=True,
    rich_markup_mode=None,  # drawing help with rich takes longer than all else that --help does
)

app.add_typer(engine_sim.app, name="engine-sim")
app.add_typer(profile.app, name="profile")
app.add_typer(conformance.app, name="conformance")
app.add_typer(import_config.app, name="import")
app.add_typer(explain.app, name="explain")
app.command("load")(load.load_command)
app.command("simulate")(simulate.simulate_command)
app.command("recommend")(recommend.recommend_command)
app.command("calibrate")(calibrate.calibrate_command)
app.command("top")(top.top_command)
app.command("traffic")(traffic.traffic_command)
app.command("workloads")(listings.workloads_command)
app.command("policies")(listings.policies_command)
app.command("profiles")(listings.profiles_command)
app.command("adopt")(adopt.adopt_command)
app.command("validate")(validate.validate_command)
app.command()(gateway.gateway)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)(
    agent.agent
)
app.command()(operator.operator)
app.command()(demo.demo)


def _print_version(wanted: bool) -> None:
    from importlib.metadata import version as installed_version

    if wanted:
        typer.echo(installed_version("ballast"))
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps a fleet of prefill/decode vLLM pods in balance."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    choose_arithmetic(os.environ.get("BALLAST_KERNEL", "auto"))


@app.command("version")
def version_command() -> None:
    """Print the version of Ballast."""
    _print_version(True)
