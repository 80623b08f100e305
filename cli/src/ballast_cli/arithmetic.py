"""BALLAST_KERNEL: whether decisions run on the compiled kernel or on numpy."""

import typer


def choose_arithmetic(choice: str) -> None:
    """`auto`: the kernel where it is installed; `on`: an error where it is not; `off`: numpy."""
    if choice == "auto":
        return
    if choice not in ("on", "off"):
        _refuse(f"must be auto, on or off, not {choice!r}")
    from ballast_core import kernel

    try:
        kernel.use(choice == "on")
    except LookupError as error:
        _refuse(str(error))


def _refuse(problem: str) -> None:
    typer.echo(f"error: BALLAST_KERNEL: {problem}", err=True)
    raise typer.Exit(2)
