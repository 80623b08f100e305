"""`ballast agent`: listed among the commands; `start` takes the shorter way to it."""

from __future__ import annotations

import sys

import typer


def agent(context: typer.Context) -> None:
    """Hold streams for pickers in an engine's pod (`ballast agent --help` lists its flags; docs/agent.md)."""
    from ballast_gateway.agent.command import main

    sys.exit(main(context.args))
