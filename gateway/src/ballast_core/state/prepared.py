"""What the compiled kernel needs of the fleet and of the requests in flight, prepared once and kept up to date.

The kernel's counterpart of `AgeHistograms`, of `Growth` and of the arrays that a `View` takes its columns from.
"""

from __future__ import annotations

from typing import Protocol

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.kernel import Kernel, Prepared
from ballast_core.model import Stage
from ballast_core.state.age_histograms import AGE_OF_BUCKET, BUCKET_OF_AGE
from ballast_core.state.flights import Flights


class Loads(Protocol):
    """What is read of the `Ledger`."""

    flights: Flights
    requests: dict[Stage, IntArray]
    tokens: dict[Stage, IntArray]
    uncached_tokens: IntArray
    uncached_pairs: FloatArray
    prefilling_since_s: FloatArray
    foreign: IntArray


class PreparedLedger:
    """Prepared arguments of one ledger, made when they are first asked for."""

    def __init__(self, ledger: Loads) -> None:
        self._ledger = ledger
        self._fleet: Prepared | None = None
        self._arrays: tuple[FloatArray | IntArray, ...] = ()
        """Those of which one or the other is replaced when the fleet grows; the ledger's all are at once."""
        self._census: Prepared | None = None
        self._census_watcher = -1
        self._growth: Prepared | None = None
        self._growth_watcher = -1
        self._grown_by: Prepared | None = None
        """The curves that `_growth` was computed from."""

    def fleet(self, kernel: Kernel, beliefs: Beliefs) -> Prepared:
        """The loads and the hardware of all slots, as they are now."""
        ledger, slots = self._ledger, len(self._ledger.foreign)
        profiles, factors = beliefs.prefill_times.columns(slots)
        hardware, step_times = beliefs.hardware.columns(slots), beliefs.step_times.columns(slots)
        before = self._arrays
        if (
            self._fleet is None
            or before[0] is not ledger.foreign
            or before[1] is not profiles
            or before[2] is not factors
            or before[3] is not hardware
            or before[4] is not step_times
        ):
            self._arrays = (ledger.foreign, profiles, factors, hardware, step_times)
            self._fleet = kernel.fleet(
                profiles,
                factors,
                ledger.requests[Stage.PREFILL],
                ledger.uncached_tokens,
                ledger.uncached_pairs,
                ledger.prefilling_since_s,
                hardware,
                step_times,
                ledger.requests[Stage.DECODE],
                ledger.foreign,
                ledger.tokens[Stage.DECODE],
            )
        return self._fleet

    def census(self, kernel: Kernel) -> Prepared:
        """The decoding requests by group, slot and age, and the pending ones, as they are now."""
        flights = self._ledger.flights
        if self._census is None:
            self._census = kernel.census(BUCKET_OF_AGE, AGE_OF_BUCKET)
            self._census_watcher = flights.watch()
        kernel.recount(self._census, flights.count, *flights.columns(self._census_watcher))
        return self._census

    def growth(self, kernel: Kernel, curves: Prepared) -> Prepared:
        """The requests one by one, with what they grow by under these curves, as they are now."""
        flights = self._ledger.flights
        if self._growth is None:
            self._growth = kernel.growth()
            self._growth_watcher = flights.watch()
        columns = flights.columns(self._growth_watcher)
        kernel.regrow(self._growth, curves, curves is not self._grown_by, flights.count, *columns)
        self._grown_by = curves
        return self._growth
