"""`ballast profile`: make hardware profiles from measurements and show them as manifests."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ballast_core.profiles import HardwareProfile
    from ballast_sim.fitting.derivation import Derived

app = typer.Typer(help="Make hardware profiles from measurements; show them as manifests.", no_args_is_help=True)


@app.command("show")
def show_command(
    names: Annotated[list[str], typer.Argument(help="Names, as `ballast profiles` lists them.")],
) -> None:
    """Print shipped profiles as HardwareProfile manifests, ready for `kubectl apply`."""
    from ballast_core.profiles import SHIPPED_PROFILES
    from ballast_sim.simulation.naming import known_names

    for name in names:
        if name not in SHIPPED_PROFILES:
            typer.echo(f"error: unknown profile {name!r}; {known_names(name, SHIPPED_PROFILES)}", err=True)
            raise typer.Exit(2)
    typer.echo("---\n".join(manifest(SHIPPED_PROFILES[name]) for name in names), nl=False)


@app.command("derive")
def derive_command(
    tables: Annotated[Path, typer.Option(help="Folder with the public tables (docs/profiles.md).")] = Path(
        "../shared/profiles"
    ),
    json_out: Annotated[bool, typer.Option("--json", help="Write one array to standard output.")] = False,
) -> None:
    """Derive the shipped profiles again from public tables and SIBYL's figures, with the errors of each fit."""
    from ballast_sim.fitting.data_sheet import h20_profiles
    from ballast_sim.fitting.errors import FitInputError
    from ballast_sim.fitting.kernel_tables import derive_from_tables

    try:
        derived = [*derive_from_tables(tables), *h20_profiles()]
    except FitInputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if json_out:
        typer.echo(json.dumps([item.as_json() for item in derived], indent=1))
        return
    for item in derived:
        for line in _derived_lines(item):
            typer.echo(line)


def manifest(profile: "HardwareProfile") -> str:
    """A HardwareProfile object as YAML."""
    import yaml

    from ballast_api.common import API_VERSION
    from ballast_api.hardware_profile import HardwareProfileSpec

    spec = HardwareProfileSpec.from_core(profile).dump()
    resource = {
        "apiVersion": API_VERSION,
        "kind": "HardwareProfile",
        "metadata": {"name": profile.name},
        "spec": spec,
    }
    return yaml.safe_dump(resource, sort_keys=False, allow_unicode=True, width=120)


def _derived_lines(item: "Derived") -> list[str]:
    """Name and coefficients, then how well they fit."""
    from ballast_sim.fitting.law import COEFFICIENTS

    profile = item.profile
    values = "  ".join(f"{name} {getattr(profile, name):g}" for name in COEFFICIENTS)
    lines = [f"{profile.name}: {values}  kv_tokens {profile.kv_tokens}"]
    for title, errors in (("train", item.train), ("held out", item.held_out)):
        if errors:
            lines.append(
                f"  {title}: {errors.samples} samples, error mean {errors.mean_ratio:.1%}, p90 {errors.p90_ratio:.1%}, "
                f"max {errors.max_ratio:.1%}, R2 {errors.r2:.4f}"
            )
    if item.held_out is None:
        lines.append("  arithmetic on a data sheet: nothing to compare with")
    if item.left_out:
        lines.append(f"  left out: {item.left_out}")
    return lines
