"""Observations of many endpoints at once, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.model.endpoints import Endpoint, Observation


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Observations of many endpoints, each at most once. Shapes: the arrays are (len(endpoints),)."""

    endpoints: tuple[Endpoint, ...]
    observed_at_s: FloatArray
    running: IntArray
    waiting: IntArray
    kv_usage_ratio: FloatArray

    @classmethod
    def of(cls, answers: Iterable[tuple[Endpoint, Observation]]) -> Observations:
        """These, in this order."""
        told = tuple(answers)
        return cls(
            tuple(endpoint for endpoint, _ in told),
            np.array([seen.observed_at_s for _, seen in told], np.float64),
            np.array([seen.running for _, seen in told], np.int64),
            np.array([seen.waiting for _, seen in told], np.int64),
            np.array([seen.kv_usage_ratio for _, seen in told], np.float64),
        )

    def __len__(self) -> int:
        return len(self.endpoints)

    def __iter__(self) -> Iterator[tuple[Endpoint, Observation]]:
        rows = zip(
            self.observed_at_s.tolist(),
            self.running.tolist(),
            self.waiting.tolist(),
            self.kv_usage_ratio.tolist(),
            strict=True,
        )
        return zip(self.endpoints, (Observation(*row) for row in rows), strict=True)

    def take(self, kept: Sequence[int]) -> Observations:
        """Those at these indices, in this order."""
        return Observations(
            tuple(self.endpoints[index] for index in kept),
            self.observed_at_s[kept],
            self.running[kept],
            self.waiting[kept],
            self.kv_usage_ratio[kept],
        )
