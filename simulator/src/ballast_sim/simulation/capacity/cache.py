"""Measured capacities on disk, by the content of what they depend on: workload, fleet, settings, and our own code."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import ballast_core
import ballast_sim
from ballast_sim.simulation.capacity.search import MeasuredCapacity
from ballast_sim.simulation.runs.experiment import Setup


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/ballast/capacity`, by default below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "ballast" / "capacity"


def cached_capacity(setup: Setup, measure: Callable[[], MeasuredCapacity]) -> tuple[MeasuredCapacity, Path | None]:
    """A capacity from the cache, with its file; or measured now and put there, with None.

    A folder that cannot be written, or a file that cannot be read, only costs the measurement.
    """
    path = cache_folder() / f"{fingerprint(setup)}.json"
    known = _read(path)
    if known is not None:
        return known, path
    measured = measure()
    _write(path, {"shape": setup.shape, "workload": setup.source.name, "capacity": asdict(measured)})
    return measured, None


def fingerprint(setup: Setup) -> str:
    """SHA-256 over everything that a measured capacity depends on."""
    digest = hashlib.sha256()
    for part in (
        code_fingerprint(),
        [asdict(machine) for machine in setup.machines],
        setup.objective.ttft_s,
        asdict(setup.unharmed.fleet),
        setup.source.duration_s,
        setup.source.limit,
        setup.source.closed_loop,
    ):
        digest.update(json.dumps(part).encode() + b"\n")
    source = setup.source
    digest.update(json.dumps([source.rate_rps, asdict(source.arrivals) if source.arrivals else None]).encode())
    digest.update(source.workload.encode() if source.trace is None else source.trace.read_bytes())
    return digest.hexdigest()


@functools.cache
def code_fingerprint() -> str:
    """SHA-256 over the sources of the core and the simulator: a new engine has a new capacity."""
    digest = hashlib.sha256()
    for package in (ballast_core, ballast_sim):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> MeasuredCapacity | None:
    try:
        return MeasuredCapacity(**json.loads(path.read_text(encoding="utf-8"))["capacity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, value: object) -> None:
    """Replace the file atomically, so that a reader never finds half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as part:
            json.dump(value, part, indent=1)
        Path(part.name).replace(path)
    except OSError:
        return
