"""What the demo shows: a fleet where placement matters, and one where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import ballast_cli


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet under a load. `pool` names the folder with its ServingPool; None is the quickstart's own."""

    says: str
    pool: str | None
    rate_rps: float
    duration_s: float = 30.0

    @property
    def manifests(self) -> tuple[Path, ...]:
        """The quickstart's folder first; a later ServingPool takes the place of its own."""
        return (quickstart_folder(), *(() if self.pool is None else (folder(self.pool),)))


CASES = {
    "busy": Case(
        says="fast and slow prefill engines at high load: it matters who gets which prompt",
        pool="mixed-fleet",
        rate_rps=10.0,
    ),
    "quiet": Case(
        says="engines of one kind in each stage with room to spare: any placement will do",
        pool=None,
        rate_rps=6.0,
    ),
}


def quickstart_folder() -> Path:
    """The folder with the quickstart's manifests."""
    return folder("quickstart")


def folder(name: str) -> Path:
    """`manifests/NAME`: package data of a wheel, the repository's own in a checkout; there is no second copy."""
    packaged = Path(str(files(ballast_cli) / "demo" / "manifests" / name))
    return packaged if packaged.is_dir() else Path(ballast_cli.__file__).parents[3] / "manifests" / name
