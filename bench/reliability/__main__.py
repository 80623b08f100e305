"""The command line: `python -m bench.reliability NAME [--ballast PATH] [--json FILE]`, or `--list`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import pkgutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import uvloop

from bench.reliability import experiments
from bench.reliability.kit.installation import Installation
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, table


def names() -> list[str]:
    """The experiments, as the command line names them."""
    return sorted(found.name.replace("_", "-") for found in pkgutil.iter_modules(experiments.__path__))


def module(name: str) -> ModuleType:
    """The module of an experiment."""
    return importlib.import_module(f"{experiments.__name__}.{name.replace('-', '_')}")


def _first_line(name: str) -> str:
    return (module(name).__doc__ or "").partition("\n")[0]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    chosen = next((argument for argument in arguments if argument in names()), None)
    about = module(chosen).__doc__ if chosen else "\n".join(f"{name}: {_first_line(name)}" for name in names())
    parser = argparse.ArgumentParser(
        "python -m bench.reliability", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=names())
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--ballast", type=Path, help="the `ballast` of another installation: its gateway is tried")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--seed", type=int, default=1, help="of prompts, arrivals and faults")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--keep", type=Path, help="keep settings and logs of all processes in this new folder")
    if chosen and (add := getattr(module(chosen), "add_options", None)):
        add(parser)
    options = parser.parse_args(arguments)
    if not options.list and options.name is None:
        parser.error("which experiment? --list says what there is")
    return options


async def _run(options: argparse.Namespace) -> list[Row]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that no engine is left behind
    async with Lab(Installation(options.ballast), options) as lab:
        rows: list[Row] = await module(options.name).run(lab)
        return rows


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 1 where the experiment says that it failed, 143 where it was told to end."""
    options = _options(arguments)
    if options.list:
        sys.stdout.write("".join(f"{name:16}{_first_line(name)}\n" for name in names()))
        return 0
    try:
        rows = uvloop.run(_run(options))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    sys.stdout.write(table(rows))
    if options.json:
        found = {"experiment": options.name, "seed": options.seed, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
