"""Derived columns of the requests in flight (ages, tokens held, rates, survival), updated row by row.

An update recomputes only the rows that have changed since the last one, or all rows when there are new survival
tables. Rows are in the order of `Flights`.
"""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.rates import request_parts
from ballast_core.beliefs.survival_tables import SurvivalTables
from ballast_core.state.flights import Flights

_AGES, _HELD, _OWN_RATES, _START_SHARES, _RECIPROCALS = range(5)


class Growth:
    """Columns of shape (count,): valid until the next `update` or change of the flights."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._watcher = flights.watch()
        self._columns: list[FloatArray] = [np.empty(0) for _ in range(5)]
        self._tables: SurvivalTables | None = None

    def update(self, tables: SurvivalTables) -> None:
        """Recompute the rows that have changed, or all rows if `tables` is new."""
        flights = self._flights
        count, changed = flights.count, flights.changes(self._watcher)
        if len(self._columns[_AGES]) < count:
            self._columns = [np.empty(2 * count) for _ in self._columns]
            self._tables = None
        if tables is not self._tables or 4 * len(changed) > count:
            self._tables = tables
            self._write(slice(count), tables)
        elif len(changed):
            self._write(changed, tables)

    def _write(self, rows: slice | IntArray, tables: SurvivalTables) -> None:
        flights, columns = self._flights, self._columns
        ages = flights.generated_tokens[rows].astype(np.float64)
        own, share = request_parts(ages - 1.0, flights.progress_at_s[rows] - flights.first_token_at_s[rows])
        columns[_AGES][rows] = ages
        columns[_HELD][rows] = ages + flights.prompt_tokens[rows]
        columns[_OWN_RATES][rows] = own
        columns[_START_SHARES][rows] = share
        classes = flights.class_slot[rows] if tables.classes > 1 else 0
        columns[_RECIPROCALS][rows] = 1.0 / tables.survival_within(ages, classes)

    @property
    def ages(self) -> FloatArray:
        """Output tokens so far."""
        return self._columns[_AGES][: self._flights.count]

    @property
    def held(self) -> FloatArray:
        """Tokens held: prompt and output so far."""
        return self._columns[_HELD][: self._flights.count]

    @property
    def own_rates(self) -> FloatArray:
        """Tokens a second: with `start_shares`, the request's own rate is own_rates + start_shares x start rate."""
        return self._columns[_OWN_RATES][: self._flights.count]

    @property
    def start_shares(self) -> FloatArray:
        """Weight of the rate that requests start from, 0 to 1; 1 for requests that have not begun."""
        return self._columns[_START_SHARES][: self._flights.count]

    @property
    def reciprocals(self) -> FloatArray:
        """1 / `SurvivalTables.survival_within` at `ages`."""
        return self._columns[_RECIPROCALS][: self._flights.count]
