"""The console script. An agent is started without what the other commands need: it sits in every engine's pod."""

from __future__ import annotations

import sys


def run() -> None:
    """`ballast ...`."""
    if sys.argv[1:2] == ["agent"]:
        from ballast_gateway.agent.command import main

        sys.exit(main(sys.argv[2:]))
    from ballast_cli.main import app

    app()
