"""A gateway's state with what it expects of each request: how many output tokens are still to come."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from ballast_core.beliefs.kinds import Belief
from ballast_core.model import RequestId
from ballast_core.policies.remaining_lengths import PREDICTORS
from ballast_gateway.driver import Driver
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.messages import Row, State

_PREDICTOR: Final = PREDICTORS["hinted"]()


class Predicting:
    """Fills `Row.predicted_remaining_tokens` of a gateway's own requests in, where lengths are learned at all."""

    def __init__(self, me: str, driver: Driver, feed: Feed) -> None:
        self._me = me
        self._driver = driver
        self._director = driver.director
        self._feed = feed

    def state(self) -> State:
        """That of the feed, with predictions."""
        state = self._feed.state()
        if Belief.LENGTHS not in self._director.beliefs.kinds or not state.requests:
            return state
        return msgspec.structs.replace(state, requests=self._predicted(state.requests))

    def _predicted(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        director = self._director
        entries = [director.ledger.get(RequestId(row.id)) if row.by == self._me else None for row in rows]
        at = np.array([-1 if entry is None else entry.row for entry in entries], np.int64)
        known = np.flatnonzero(at >= 0)
        if not len(known):
            return rows
        remaining = np.full(len(rows), np.nan)
        tables = director.beliefs.lengths.tables(self._driver.now_s())
        remaining[known] = _PREDICTOR.remaining_tokens(director.ledger.flights, at[known], tables)
        return tuple(
            row
            if np.isnan(tokens)
            else msgspec.structs.replace(row, predicted_remaining_tokens=round(float(tokens), 1))
            for row, tokens in zip(rows, remaining, strict=True)
        )
