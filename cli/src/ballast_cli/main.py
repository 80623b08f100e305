"""The `ballast` command. Sub-commands import what they need when they run, so that `--help` stays fast."""

import typer

from ballast_cli import calibrate, engine_sim, gateway, listings, load, operator, profile, simulate, validate
from ballast_cli.demo import command as demo

app = typer.Typer(name="ballast", help="Keeps a fleet of prefill/decode vLLM pods in balance.", no_args_is_help=True)

app.add_typer(engine_sim.app, name="engine-sim")
app.add_typer(profile.app, name="profile")
app.command("load")(load.load_command)
app.command("simulate")(simulate.simulate_command)
app.command("calibrate")(calibrate.calibrate_command)
app.command("workloads")(listings.workloads_command)
app.command("policies")(listings.policies_command)
app.command("profiles")(listings.profiles_command)
app.command("validate")(validate.validate_command)
app.command()(gateway.gateway)
app.command()(operator.operator)
app.command()(demo.demo)


@app.callback()
def main() -> None:
    """Keeps a fleet of prefill/decode vLLM pods in balance."""


@app.command()
def version() -> None:
    """Print the version of Ballast."""
    from importlib.metadata import version as installed_version

    typer.echo(installed_version("ballast"))
