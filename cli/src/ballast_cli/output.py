"""Where results go: checked before an hour of work, written after it, and never a traceback for a full disk."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer


def check_outputs(
    outputs: Mapping[str, str | Path | None], inputs: Sequence[Path | None] = (), *, files_only: Sequence[str] = ()
) -> None:
    """Raises ValueError naming the option of a file that cannot be written, or that is an input or another output.

    None always can, and one `-` (standard output) but for the options in `files_only`.
    """
    printed = [option for option, target in outputs.items() if str(target) == "-"]
    if len(printed) > 1:
        raise ValueError(f"{', '.join(printed)}: standard output takes one of them; name a file for the other")
    taken = {_same(path): str(path) for path in inputs if path is not None}
    for option, target in outputs.items():
        if str(target) == "-" and option in files_only:
            raise ValueError(f"{option}: writes a file only; name one")
        if target is None or str(target) == "-":
            continue
        if "\0" in str(target) or not str(target):
            raise ValueError(f"{option}: {str(target)!r} is no file name")
        path = Path(target)
        if path.is_dir():
            raise ValueError(f"{option}: {path}: is a folder; name a file")
        if not path.parent.is_dir():
            raise ValueError(f"{option}: {path}: its folder does not exist; make it first")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{option}: {path}: cannot be written; choose another file")
        if _same(path) in taken:
            raise ValueError(f"{option}: {path}: would overwrite {taken[_same(path)]}; choose another file")
        taken[_same(path)] = option


def write_output(option: str, target: str | Path, text: str) -> None:
    """To a file, or to standard output for `-`. Raises ValueError where the file cannot be written."""
    if str(target) == "-":
        typer.echo(text, nl=False)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{option}: {target}: cannot be written: {error.strerror}") from None


def discard_standard_output() -> None:
    """What is still buffered is lost: the interpreter flushes at its end, and a failure there makes its status 120."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _same(path: Path) -> Path:
    return path.absolute().resolve()
