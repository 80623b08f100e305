"""Figures of a benchmark, written to a file, and compared with those of an earlier run on perhaps another machine.

With its figures a run records how long a fixed piece of work takes where it runs, small and large numpy calls as the
core makes them. Times are compared in that unit: 1.0 is as fast as before, for a machine of that speed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

Row = Mapping[str, Any]


class Calibration:
    """The fixed work. Take it again between figures: a machine that others use, too, changes its speed."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []
        index = np.arange(10_000) * 7919
        self._values = (index % 1009) / 1009.0
        self._places = index % 100

    def take(self, times: int = 50) -> None:
        """Measure so many times."""
        for _ in range(times):
            start = time.thread_time()
            self._work()
            self.taken_s.append(time.thread_time() - start)

    def _work(self) -> None:
        weights = self._values.take(self._places) * self._values + self._values
        sums = np.bincount(self._places, weights=weights, minlength=100)
        for _ in range(50):
            sums = np.sqrt(sums * 1.5 + 1.0)
        sums.argmin()

    @property
    def seconds(self) -> float:
        """Median of all measurements, in processor time."""
        return median(self.taken_s)


@dataclass(frozen=True, slots=True)
class Recording:
    """One run's figures."""

    calibration_s: float
    rows: Sequence[Row]

    def write(self, path: Path) -> None:
        """As JSON, one row a line."""
        rows = ",\n".join(json.dumps(row) for row in self.rows)
        path.write_text(f'{{"calibration_s": {self.calibration_s:.3e}, "rows": [\n{rows}\n]}}\n')

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises `SystemExit` naming the file if it holds no recording."""
        try:
            content = json.loads(path.read_text())
            return cls(float(content["calibration_s"]), content["rows"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}: holds no recorded run ({error}); write one with --json") from None


class Earlier:
    """Finds a figure's counterpart in an earlier run."""

    def __init__(self, path: Path | None, key: Callable[[Row], object]) -> None:
        """`key` identifies a row. Without a path there is nothing to compare with."""
        self._key = key
        self._recording = None if path is None else Recording.read(path)
        self._rows = {} if self._recording is None else {key(row): row for row in self._recording.rows}

    def time_ratio(self, row: Row, name: str, calibration: Calibration) -> float | None:
        """This time over the earlier one, in units of the fixed work; None if there is none."""
        before = self._rows.get(self._key(row))
        if before is None or self._recording is None:
            return None
        return float(row[name] / before[name]) * self._recording.calibration_s / calibration.seconds
