"""Commands that need more than a plain installation: the extra of each, and the line that says so."""

from __future__ import annotations

from typing import Final

EXTRA_OF: Final = {
    "adopt": "operator",  # from a cluster; files are read without
    "agent": "gateway",
    "conformance": "gateway",
    "demo": "sim",
    "engine-sim": "sim",
    "explain": "operator",  # from a cluster, too
    "gateway": "gateway",
    "load": "sim",
    "operator": "operator",
}
"""Command to extra, as pyproject.toml declares them. All others run on the plain installation."""


def missing_extra(command: str | None, error: ModuleNotFoundError) -> str | None:
    """What to install in one line; None where no extra has the module that was not found."""
    extra = EXTRA_OF.get(command or "")
    if extra is None or error.name is None or error.name.startswith("ballast_"):
        return None
    return (
        f"error: ballast {command} needs the extra {extra!r} (no module {error.name} is installed): "
        f"pip install 'ballast[{extra}]'"
    )
