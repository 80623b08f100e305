"""What a run comes to, what tells one run from another, and results on disk by content."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. `goodput_rps` counts the requests that met the workload's thresholds."""

    tpot_p99_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    ttft_mean_s: float
    goodput_rps: float
    preemptions: int
    completed: int
    rejected: int
    cpu_s: float
    """Processor time of the run; this machine's."""

    @classmethod
    def of(cls, row: Mapping[str, Any], cpu_s: float) -> Figures:
        """From a row of `ballast simulate --json`. Raises ValueError where no request has a second token."""
        tpot, ttft = row["tpot_s"], row["ttft_s"]
        if tpot["p99"] is None:
            raise ValueError("no request completed with two tokens or more; the run has no TPOT")
        return cls(
            tpot_p99_s=rounded(tpot["p99"]),
            ttft_p99_s=rounded(ttft["p99"]),
            tpot_mean_s=rounded(tpot["mean"]),
            ttft_mean_s=rounded(ttft["mean"]),
            goodput_rps=rounded(row["goodput_rps"]),
            preemptions=row["preemptions"],
            completed=row["completed"],
            rejected=row["rejected"],
            cpu_s=round(cpu_s, 2),
        )


def rounded(value: float) -> float:
    """To seven significant digits, as recorded."""
    return float(f"{value:.7g}")


@dataclass(frozen=True, slots=True)
class Capacity:
    """Where load 1.0 lies. `full_ratio` is the measured capacity over what arithmetic says of the same requests."""

    rate_rps: float
    full_ratio: float
    probes: int
    bounded: bool
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Code:
    """Digests of the code that a result comes from: of its placements, and of all else."""

    placement: str
    common: str


@dataclass(frozen=True, slots=True)
class Store:
    """A folder with a file for each result, named by the digests of what it depends on."""

    folder: Path
    trust_common: bool = False
    """Whether results of other common code count, too: for changes that are known to alter no figure."""

    def get(self, description: Mapping[str, object], code: Code) -> tuple[dict[str, Any], Code] | None:
        """A result and the code that it comes from; None where there is none that counts."""
        stem = f"{digest_of(description)}-{code.placement}"
        found = [self.folder / f"{stem}-{code.common}.json"]
        if self.trust_common:
            found += sorted(self.folder.glob(f"{stem}-*.json"), key=lambda path: -path.stat().st_mtime)
        for path in found:
            try:
                result = json.loads(path.read_text(encoding="utf-8"))["result"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            return dict(result), Code(code.placement, path.stem.rpartition("-")[2])
        return None

    def put(self, description: Mapping[str, object], code: Code, result: Figures | Capacity) -> None:
        """In one move, so that a reader never sees half a file."""
        path = self.folder / f"{digest_of(description)}-{code.placement}-{code.common}.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as part:
            json.dump({"of": description, "result": asdict(result)}, part)
        Path(part.name).replace(path)


def digest_of(description: Mapping[str, object]) -> str:
    """Of a description as JSON, whatever the order of its keys. Raises ValueError for a number that JSON lacks."""
    text = json.dumps(description, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def cache_folder(checkout: Path) -> Path:
    """`$XDG_CACHE_HOME/ballast/matrix`; without that, `build/matrix` in the checkout."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base) / "ballast" / "matrix" if base.startswith("/") else checkout / "build" / "matrix"


def worse_ratio(value: float, against: float, *, more_is_better: bool) -> float:
    """By which factor a figure is worse than another; below 1 where it is better. Both 0 are equal."""
    if value == against:
        return 1.0
    worse, better = (against, value) if more_is_better else (value, against)
    return worse / better if better else math.inf
