"""`ballast profile`: make hardware profiles from measurements and show them as manifests."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ballast_core.profiles import HardwareProfile
    from ballast_sim.fitting.derivation import Derived
    from ballast_sim.fitting.fitting import FittedProfile
    from ballast_sim.fitting.law import Errors

app = typer.Typer(help="Make hardware profiles from measurements; show them as manifests.", no_args_is_help=True)


@app.command("fit")
def fit_command(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(help="Step logs, `vllm bench serve` results with token times, or /metrics scrapes in order."),
    ],
    base: Annotated[
        str, typer.Option(help="Profile for what the data do not determine: a shipped one's name, or a manifest file.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the new profile; by default the base's and -fitted.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--from", help="steps, bench or metrics. Default: recognised from the files.")
    ] = None,
    hardware: Annotated[str | None, typer.Option(help="What the machine is, for people.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of one engine.", min=1)] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="Tokens that the KV cache holds.", min=1)] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="The engine's token budget of a step; by default the base's.", min=1)
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Write the HardwareProfile manifest to a file, or - for stdout.")
    ] = None,
    json_out: Annotated[
        str | None, typer.Option("--json", help="Write profile and quality to a file, or - for stdout.")
    ] = None,
) -> None:
    """Fit a hardware profile to measurements, and report its errors on a part that the fit did not see.

    Exit status: 0 when a profile was made, also when the fit is poor (a warning says so); 2 for input that cannot be
    used.
    """
    from dataclasses import replace

    from ballast_api.errors import InvalidInput
    from ballast_cli.output import check_outputs, write_output
    from ballast_core.profiles import SHIPPED_PROFILES
    from ballast_sim.fitting.errors import FitInputError
    from ballast_sim.fitting.fitting import KINDS, fit_profile

    chosen = next((known for known in KINDS if known == kind), None)
    stated = {"hardware": hardware, "gpus": gpus, "kv_tokens": kv_tokens}
    try:
        if kind is not None and chosen is None:
            raise FitInputError(f"--from: must be {', '.join(KINDS)}, not {kind!r}")
        inputs = [*files, None if base in SHIPPED_PROFILES else Path(base)]
        check_outputs({"--output": output, "--json": json_out}, inputs)
        start = _base_profile(base)
        fitted = fit_profile(
            files,
            start,
            _checked_name(name or f"{start.name}-fitted"),
            kind=chosen,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        changes: dict[str, Any] = {field: value for field, value in stated.items() if value is not None}
        fitted = replace(fitted, profile=replace(fitted.profile, **changes))
        _check_stated(fitted.profile)
        if output is not None:
            write_output("--output", output, manifest(fitted.profile))
        if json_out is not None:
            write_output("--json", json_out, json.dumps(fitted.as_json(), indent=2) + "\n")
    except (FitInputError, InvalidInput, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    to_stderr = "-" in (output, json_out)
    for line in _fitted_lines(fitted):
        typer.echo(line, err=to_stderr)
    for warning in fitted.fit.warnings():
        typer.echo(f"warning: {warning}", err=True)


@app.command("show")
def show_command(
    names: Annotated[list[str], typer.Argument(help="Names, as `ballast profiles` lists them.")],
) -> None:
    """Print shipped profiles as HardwareProfile manifests, ready for `kubectl apply`."""
    from ballast_core.profiles import SHIPPED_PROFILES
    from ballast_sim.naming import known_names

    for name in names:
        if name not in SHIPPED_PROFILES:
            typer.echo(
                f"error: unknown profile {name!r}; " + known_names(name, SHIPPED_PROFILES, "ballast profiles"), err=True
            )
            raise typer.Exit(2)
    typer.echo("---\n".join(manifest(SHIPPED_PROFILES[name]) for name in names), nl=False)


@app.command("derive")
def derive_command(
    tables: Annotated[Path, typer.Option(help="Folder with the public tables (docs/public-data.md).")] = Path(
        "../shared/profiles"
    ),
    json_out: Annotated[bool, typer.Option("--json", help="Write one array to standard output.")] = False,
) -> None:
    """Derive the shipped profiles again from public tables and SIBYL's figures, with the errors of each fit.

    Splitwise's measured requests are compared with them, where it measured the like.
    """
    from ballast_sim.fitting.data_sheet import h20_profiles
    from ballast_sim.fitting.errors import FitInputError
    from ballast_sim.fitting.kernel_tables import derive_from_tables
    from ballast_sim.fitting.splitwise import measured_over_derived

    try:
        derived = [*derive_from_tables(tables), *h20_profiles()]
        measured = measured_over_derived(tables, (item.profile for item in derived))
    except FitInputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if json_out:
        typer.echo(json.dumps([item.as_json() for item in derived], indent=1))
        return
    for item in derived:
        for line in _derived_lines(item):
            typer.echo(line)
    for ratio in measured:
        typer.echo(
            f"{ratio.name}: Splitwise measured {ratio.token_ratio:.2f} times its time for a token and "
            f"{ratio.prompt_ratio:.2f} times for a prompt (medians of {ratio.requests} single requests, engine of 2023)"
        )


def manifest(profile: "HardwareProfile") -> str:
    """A HardwareProfile object as YAML."""
    import yaml

    from ballast_api.common import API_VERSION
    from ballast_api.hardware_profile import HardwareProfileSpec

    spec = HardwareProfileSpec.from_core(profile).dump()
    metadata = {"name": profile.name}
    resource = {"apiVersion": API_VERSION, "kind": "HardwareProfile", "metadata": metadata, "spec": spec}
    return yaml.safe_dump(resource, sort_keys=False, allow_unicode=True, width=120)


def _base_profile(text: str) -> "HardwareProfile":
    """A shipped profile, or the one of a manifest. Raises ValueError or InvalidInput."""
    from ballast_api.hardware_profile import HardwareProfile as Manifest
    from ballast_api.loading import load_manifest_files
    from ballast_core.profiles import SHIPPED_PROFILES
    from ballast_sim.naming import known_names

    if text in SHIPPED_PROFILES:
        return SHIPPED_PROFILES[text]
    if not Path(text).is_file():
        raise ValueError(
            f"--base: {text!r} is no file and no profile; " + known_names(text, SHIPPED_PROFILES, "ballast profiles")
        )
    profiles = [item for item in load_manifest_files(Path(text)) if isinstance(item, Manifest)]
    if len(profiles) != 1:
        raise ValueError(f"--base: {text} must hold one HardwareProfile, not {len(profiles)}")
    return profiles[0].spec.to_simulate(profiles[0].name)


def _checked_name(name: str) -> str:
    """A name that Kubernetes takes. Raises ValueError."""
    import re

    from ballast_api.common import DNS_SUBDOMAIN, PATTERN_SENTENCES

    if not re.fullmatch(DNS_SUBDOMAIN, name):
        raise ValueError(f"--name: {PATTERN_SENTENCES[DNS_SUBDOMAIN]}, not {name!r}")
    return name


def _check_stated(profile: "HardwareProfile") -> None:
    """Raises ValueError naming the option of what no HardwareProfile takes."""
    from pydantic import ValidationError

    from ballast_api.errors import explain
    from ballast_api.hardware_profile import HardwareProfileSpec

    try:
        HardwareProfileSpec.from_core(profile)
    except ValidationError as error:
        problem = explain(error)[0]
        raise ValueError(f"--{problem.field.replace('_', '-')}: {problem.message}") from None


def _fitted_lines(fitted: "FittedProfile") -> list[str]:
    """Each coefficient and where it is from, the errors, and what was passed over."""
    from ballast_sim.fitting.law import COEFFICIENTS

    lines = [f"{fitted.profile.name}, from {fitted.kind}:"]
    for name in COEFFICIENTS:
        kept, unsure = fitted.fit.kept.get(name), fitted.fit.unsure.get(name)
        origin = (
            f"kept from {fitted.base.name}: {kept}" if kept else f"fitted, unsure: {unsure}" if unsure else "fitted"
        )
        lines.append(f"  {name:<18} {getattr(fitted.profile, name):<12g} {origin}")
    lines += [_errors_line("train", fitted.fit.train), _errors_line("held out", fitted.fit.held_out)]
    return lines + [f"  note: {note}" for note in fitted.notes]


def _errors_line(title: str, errors: "Errors") -> str:
    r2 = "R2 not defined: all took the same time" if errors.r2 is None else f"R2 {errors.r2:.4f}"
    return (
        f"  {title}: {errors.samples} samples, error mean {errors.mean_ratio:.2%}, p90 {errors.p90_ratio:.2%}, "
        f"max {errors.max_ratio:.2%}, {r2}"
    )


def _derived_lines(item: "Derived") -> list[str]:
    """Name and coefficients, then how well they fit."""
    from ballast_sim.fitting.law import COEFFICIENTS

    profile = item.profile
    values = "  ".join(f"{name} {getattr(profile, name):g}" for name in COEFFICIENTS)
    lines = [f"{profile.name}: {values}  kv_tokens {profile.kv_tokens}"]
    for title, errors in (("train", item.train), ("held out", item.held_out)):
        if errors:
            lines.append(_errors_line(title, errors))
    if item.held_out is None:
        lines.append("  arithmetic on a data sheet: nothing to compare with")
    if item.left_out:
        lines.append(f"  left out: {item.left_out}")
    return lines
