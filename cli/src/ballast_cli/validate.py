"""`ballast validate`: our engine against recorded runs of vLLM's own scheduler."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ballast_sim.validation import Comparison


def validate_command(
    files: Annotated[list[Path], typer.Argument(help="Golden files (JSONL, plain or gzip).")],
    json_out: Annotated[str | None, typer.Option("--json", help="Write the list to a file, or - for stdout.")] = None,
    tolerance: Annotated[float, typer.Option(help="Largest error ratio of P99 TTFT and P99 TPOT.", min=0.0)] = 0.01,
) -> None:
    """Run the engine on each golden file's settings and requests, and compare step by step.

    Exit status: 0 when every P99 is within the tolerance, 1 when one is not, 2 for a file that cannot be read.
    """
    from ballast_cli.output import check_outputs, write_output
    from ballast_sim.validation import GoldenFileError, compare, read_golden

    try:
        check_outputs({"--json": json_out}, files)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    results: list[Comparison] = []
    for path in files:
        try:
            results.append(compare(read_golden(path)))
        except GoldenFileError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        if json_out != "-":
            typer.echo(_line(results[-1]))
    if json_out is not None:
        text = json.dumps([result.as_json() for result in results], indent=2)
        try:
            write_output("--json", json_out, text + "\n")
        except ValueError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
    if not all(result.within(tolerance) for result in results):
        raise typer.Exit(1)


def _line(result: "Comparison") -> str:
    """One file in one line."""
    differs = result.first_differing_step
    steps = f"all {result.steps_golden} steps the same" if differs is None else f"first differing step {differs}"
    if result.steps_ours != result.steps_golden:
        steps += f" ({result.steps_ours} steps, golden {result.steps_golden})"
    worst_us = result.token_time_error_s["max"] * 1e6
    return (
        f"{result.file}: {result.requests} requests, {steps}; P99 error TTFT {result.ttft_p99_error_ratio:+.3%}, "
        f"TPOT {result.tpot_p99_error_ratio:+.3%}; largest token time error {worst_us:.1f} us"
    )
