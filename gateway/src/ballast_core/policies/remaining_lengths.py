"""Who foretells the remaining length of requests in flight. Hidden states stay with the engine: it sends hints."""

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
    """Says how long requests go on."""

    type: ClassVar[str]

    def remaining_tokens(self, flights: Flights, rows: IntArray, tables: SurvivalTables) -> FloatArray:
        """Output tokens that each of these rows of the flights has to come; 0 or more, shape (rows,). Pure."""
        ...


@dataclass(frozen=True, slots=True)
class Survival:
    """E[L - l | L > l] by the survival curve of the request's class, given that it has l tokens and its own limit."""

    type: ClassVar[str] = "survival"

    def remaining_tokens(self, flights: Flights, rows: IntArray, tables: SurvivalTables) -> FloatArray:
        limits = flights.limit_tokens[rows]
        caps = None if (limits == NO_LIMIT).all() else np.where(limits == NO_LIMIT, np.inf, limits)
        classes = flights.class_slot[rows] if tables.classes > 1 else 0
        return tables.expected_remaining(flights.generated_tokens[rows].astype(np.float64), classes, caps)


@dataclass(frozen=True, slots=True)
class Hinted:
    """What the request or its engine said last, less what came since; `Survival` for those without, or beyond it."""

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
