"""The console script. An agent is started without what the other commands need: it sits in every engine's pod."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def run() -> None:
    """`ballast ...`."""
    _open_standard_files()
    if sys.argv[1:2] == ["agent"]:
        sys.exit(_agent(sys.argv[2:]))
    from ballast_cli.main import app

    app()


def _open_standard_files() -> None:
    """Those that were closed (`>&-`) become /dev/null: an event loop's file would take their number and libuv abort."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
    os.close(file)
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _agent(arguments: list[str]) -> int:
    try:
        from ballast_gateway.agent.command import main
    except ModuleNotFoundError as error:
        from ballast_cli.extras import missing_extra

        needed = missing_extra("agent", error)
        if needed is None:
            raise
        sys.stderr.write(f"{needed}\n")
        return 2
    return main(arguments)
