"""SIBYL's projected load of running requests against what became of them: its figure 7, through a whole fleet.

A request with prompt p that has generated l tokens at rate v is expected to hold P(l + v tau | l) (p + l + v tau)
tokens at look-ahead tau. Summed over the requests of nearly one age the error is |expected - actual| over what they
would hold if all lived: with true rates that is the error of P, which figure 7 shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.rates import request_tokens_per_s
from ballast_core.directing.director import Director
from ballast_core.state.ledger import Phase

LOOK_AHEADS_S: Final = (1.0, 5.0, 20.0, 60.0)
AGE_EDGES: Final = (0, 128, 512, 2048)
"""Where bands of age (tokens generated so far) begin; the last one has no end."""

TokensBy = Callable[[int, FloatArray], FloatArray]
"""(request, times): output tokens that it had by then, NaN once it had ended."""


@dataclass(frozen=True, slots=True)
class ProjectionError:
    """Requests of one band of age at one look-ahead."""

    age_from_tokens: int
    look_ahead_s: float
    requests: int
    """Predictions, one for each running request at each sample."""
    error_ratio: float
    """|expected - actual| of their summed load, over the load if all lived."""
    bias_ratio: float
    """The same with its sign: above 0 more load was expected than came."""


@dataclass(frozen=True, slots=True)
class _Sample:
    request: int
    now_s: float
    prompt_tokens: int
    generated_tokens: int
    expected: FloatArray
    if_alive: FloatArray


class ProjectionWatch:
    """Takes samples of a gateway's projections, and compares them when the run is over."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []

    def sample(self, director: Director, now_s: float) -> None:
        """Project every request that decodes now."""
        entries = [entry for entry in director.ledger if entry.phase is Phase.DECODING and entry.generated_tokens > 0]
        if not entries:
            return
        flights, beliefs = director.ledger.flights, director.beliefs
        rows = np.array([entry.row for entry in entries])
        generated = flights.generated_tokens[rows].astype(np.float64)
        decoding_s = flights.progress_at_s[rows] - flights.first_token_at_s[rows]
        rates = request_tokens_per_s(generated, decoding_s, beliefs.rates.tokens_per_s(flights.slot[rows], now_s))
        later = generated[:, None] + rates[:, None] * np.array(LOOK_AHEADS_S)
        if_alive = flights.prompt_tokens[rows][:, None] + later
        now = np.broadcast_to(generated[:, None], later.shape)
        classes = np.broadcast_to(flights.class_slot[rows][:, None], later.shape)
        expected = if_alive * beliefs.lengths.tables(now_s).conditional(now, later, classes)
        for index, entry in enumerate(entries):
            self._samples.append(
                _Sample(
                    int(entry.request.id),
                    now_s,
                    entry.request.prompt_tokens,
                    entry.generated_tokens,
                    expected[index],
                    if_alive[index],
                )
            )

    def errors(self, tokens_by: TokensBy) -> tuple[ProjectionError, ...]:
        """By band of age and look-ahead; bands without requests are left out."""
        if not self._samples:
            return ()
        look_aheads = np.array(LOOK_AHEADS_S)
        ages = np.array([sample.generated_tokens for sample in self._samples])
        expected = np.stack([sample.expected for sample in self._samples])
        if_alive = np.stack([sample.if_alive for sample in self._samples])
        held = [
            sample.prompt_tokens + tokens_by(sample.request, sample.now_s + look_aheads) for sample in self._samples
        ]
        actual = np.nan_to_num(np.stack(held))
        found = []
        for first, last in zip(AGE_EDGES, (*AGE_EDGES[1:], None), strict=True):
            band = (ages >= first) & (ages < (np.inf if last is None else last))
            if not band.any():
                continue
            for column, look_ahead_s in enumerate(LOOK_AHEADS_S):
                missed = float((expected[band, column] - actual[band, column]).sum() / if_alive[band, column].sum())
                found.append(ProjectionError(first, look_ahead_s, int(band.sum()), abs(missed), missed))
        return tuple(found)
