"""`ballast workloads`, `ballast policies`, `ballast profiles`: what there is, one line each."""

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Write one array to standard output.")]


def workloads_command(json_out: JsonOption = False) -> None:
    """List the built-in workloads of `simulate` and `load`."""
    from ballast_sim.workloads import GENERATORS

    rows = [
        {
            "name": generator.name,
            "explanation": generator.explanation,
            "default_rate_rps": generator.default_rate_rps,
        }
        for generator in GENERATORS.values()
    ]
    _print(rows, json_out, lambda row: f"{row['explanation']} Default rate {row['default_rate_rps']:g} requests/s.")


def policies_command(json_out: JsonOption = False) -> None:
    """List the policies of every kind. Any placement may place prefills and decodes.

    Those that take other policies are written in a SchedulingPolicy manifest (`simulate --policy-file`); `oracle` is
    for `simulate` alone.
    """
    from ballast_core.policies.registry import PARTS, PLACEMENT, SCALING
    from ballast_sim.simulation.policies.only_simulated import SIMULATOR_ONLY

    tables = {kind.name: dict(kind.types) for kind in (*PARTS.values(), SCALING)}
    tables[PLACEMENT.name] |= SIMULATOR_ONLY
    rows = [
        {"kind": kind, "name": name, "explanation": _first_line(policy), "parameters": _parameters(policy)}
        for kind, types in tables.items()
        for name, policy in sorted(types.items())
    ]

    def line(row: Mapping[str, Any]) -> str:
        takes = ", ".join(
            parameter["name"] if parameter["default"] is None else f"{parameter['name']}={parameter['default']}"
            for parameter in row["parameters"]
        )
        return str(row["explanation"]) + (f" Parameters: {takes}." if takes else "")

    _print(rows, json_out, line)


def profiles_command(json_out: JsonOption = False) -> None:
    """List the hardware profiles: a model on a kind of machine."""
    from ballast_core.profiles import SHIPPED_PROFILES

    rows = [dataclasses.asdict(profile) for _, profile in sorted(SHIPPED_PROFILES.items())]
    _print(
        rows,
        json_out,
        lambda row: (
            f"{row['hardware']}; {row['kv_tokens']:,} KV tokens, {row['max_num_seqs']} sequences, "
            f"{row['link_gbps']:g} Gbit/s. From: {row['derivation']}."
        ),
    )


def _first_line(policy: type) -> str:
    """The first sentence or line of its docstring."""
    return (policy.__doc__ or "").strip().split("\n", 1)[0].strip()


def _parameters(policy: type) -> list[dict[str, object]]:
    """The fields of its dataclass; None is the default of one that must be given."""
    from ballast_core.policies.parameters import Takes, parameters_of

    kinds = {Takes.POLICY: "policy", Takes.POLICIES: "list of policies"}
    return [
        {
            "name": each.name,
            "type": kinds.get(each.takes, each.scalar.__name__),
            "default": None if each.required else each.default,
        }
        for each in parameters_of(policy)
    ]


def _print(rows: Sequence[Mapping[str, Any]], json_out: bool, line: Callable[[Mapping[str, Any]], str]) -> None:
    if json_out:
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    kind = None
    for row in rows:
        if row.get("kind") != kind:
            kind = row["kind"]
            typer.echo(f"{str(kind).capitalize()}:")
        typer.echo(_fitted(f"{row['name']:<{width}}  {line(row)}", width + 2))


def _fitted(text: str, indent: int) -> str:
    """Wrapped below its second column on a terminal; one line for pipes."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    columns = max(shutil.get_terminal_size().columns, indent + 30)
    return textwrap.fill(text, columns, subsequent_indent=" " * indent, break_on_hyphens=False)
