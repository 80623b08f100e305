"""Predictors of the remaining length of requests in flight. An engine's own prediction arrives as a hint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.survival_tables import SurvivalTables
from ballast_core.state.flights import NO_LIMIT, Flights


class Predictor(Protocol):
    """Predicts remaining lengths."""

    type: ClassVar[str]

    def remaining_tokens(self, flights: Flights, rows: IntArray, tables: SurvivalTables) -> FloatArray:
        """Output tokens still to come in each of these rows of the flights; 0 or more, shape (rows,). Pure."""
        ...


@dataclass(frozen=True, slots=True)
class Survival:
    """E[min(L, limit) - l | L > l] by the survival curve of the request's class, for a request with l output tokens."""

    type: ClassVar[str] = "survival"

    def remaining_tokens(self, flights: Flights, rows: IntArray, tables: SurvivalTables) -> FloatArray:
        limits = flights.limit_tokens[rows]
        caps = None if (limits == NO_LIMIT).all() else np.where(limits == NO_LIMIT, np.inf, limits)
        classes = flights.class_slot[rows] if tables.classes > 1 else 0
        return tables.expected_remaining(flights.generated_tokens[rows].astype(np.float64), classes, caps)


@dataclass(frozen=True, slots=True)
class Hinted:
    """The last hint of the request or its engine, less the tokens since; `Survival` without a hint, or beyond it."""

    type: ClassVar[str] = "hinted"

    def remaining_tokens(self, flights: Flights, rows: IntArray, tables: SurvivalTables) -> FloatArray:
        generated = flights.generated_tokens[rows].astype(np.float64)
        total = np.minimum(flights.expected_tokens[rows], flights.limit_tokens[rows])
        remaining = np.asarray(total - generated, np.float64)
        unknown = np.flatnonzero(~(remaining > 0))
        if len(unknown):
            remaining[unknown] = Survival().remaining_tokens(flights, rows[unknown], tables)
        return remaining


_SHIPPED: tuple[type[Predictor], ...] = (Hinted, Survival)

PREDICTORS: Mapping[str, type[Predictor]] = MappingProxyType({predictor.type: predictor for predictor in _SHIPPED})
"""Every predictor, by type name."""
