"""A gateway's predictions, compared with what the simulated engines then do.

Prefill time and cached tokens are predicted when a request is dispatched. The step time of each endpoint is predicted
once a second from the load that the gateway's ledger shows, and compared with the gaps between tokens in the second
that follows. The load of running requests is projected every few seconds of the second half of the arrivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, RequestId
from ballast_core.model.effects import Dispatch, Effect, Handoff
from ballast_core.profiles import HardwareProfile
from ballast_sim.calibration.projections import ProjectionError, ProjectionWatch
from ballast_sim.engine import TokensAdvanced
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.inputs.source import Load
from ballast_sim.simulation.policies.choice import PolicyChoice

_WINDOW_S: Final = 1.0
_PROJECT_EVERY_S: Final = 5.0
_LEAST_GAPS: Final = 8
"""Gaps between tokens that a window must hold for an estimate of the step time."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors relative to what really happened: predicted / actual - 1. None without predictions."""

    predictions: int
    bias_ratio: float | None
    """Median signed error; above 0 means that less time passed than predicted."""
    p50_ratio: float | None
    """Percentiles of the error's size."""
    p90_ratio: float | None
    p99_ratio: float | None
    p90_s: float | None
    """90th percentile of |predicted - actual|, in seconds."""

    @classmethod
    def of(cls, predicted_s: FloatArray, actual_s: FloatArray) -> ErrorSummary:
        """Of pairs, all of them above 0."""
        if not len(actual_s):
            return cls(0, None, None, None, None, None)
        signed = predicted_s / actual_s - 1.0
        p50, p90, p99 = (float(value) for value in np.percentile(np.abs(signed), (50, 90, 99)))
        p90_s = float(np.percentile(np.abs(predicted_s - actual_s), 90))
        return cls(len(actual_s), float(np.median(signed)), p50, p90, p99, p90_s)


@dataclass(frozen=True, slots=True)
class PrefixSummary:
    """Cached prompt tokens as the prefix index predicted them and as the prefilling engine found them."""

    requests: int
    predicted_ratio: float
    """Share of all prompt tokens that was expected to be cached."""
    actual_ratio: float
    missed_ratio: float
    """Share of all prompt tokens that was cached without being expected."""
    imagined_ratio: float
    """Share of all prompt tokens that was expected and not cached."""


@dataclass(frozen=True, slots=True)
class FleetPredictions:
    """One run."""

    profiles_known: bool
    """Whether the gateway had the hardware's profiles, or learned step times without them."""
    step_time: ErrorSummary
    prefill_time: ErrorSummary
    prefixes: PrefixSummary | None
    """None where the workload has no prefix ids."""
    projections: tuple[ProjectionError, ...]
    """Projected load of running requests, by age and look-ahead."""


def predict_and_measure(
    machines: Sequence[Machine],
    load: Load,
    policy: PolicyChoice,
    *,
    profiles_known: bool = True,
    seed: int = 0,
    fleet: FleetSettings | None = None,
) -> FleetPredictions:
    """Simulate to the end. Raises ValueError naming a request that fits no KV cache."""
    profiles: dict[str, HardwareProfile] = {}
    if profiles_known:
        profiles = {machine.profile.name: machine.profile for machine in machines}
    settings = DirectorSettings(**policy.suite.parts(), profiles=profiles, learn=Belief.ALL)
    surroundings = replace(fleet or FleetSettings(known_limits=False), seed=seed, gateways=1)
    arrivals_s = [request.arrival_s for request in load.requests]
    held_back = (arrivals_s[len(arrivals_s) // 2], arrivals_s[-1])
    watched = _WatchedFleet(machines, settings, surroundings, held_back)
    watched.load(load.requests, load.turn_after)
    watched.run()
    return FleetPredictions(
        profiles_known,
        watched.step_times(),
        watched.prefill_times(),
        watched.prefixes(load),
        watched.projections.errors(watched.tokens_by),
    )


@dataclass(slots=True)
class _Gaps:
    """Times of tokens on one endpoint, and the gap before each."""

    times_s: list[FloatArray] = field(default_factory=list)
    gaps_s: list[FloatArray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Expected:
    dispatched_s: float
    prefill_s: float
    cached_tokens: int


class _WatchedFleet(Fleet):
    """A fleet that notes what its gateway predicts and what its engines do."""

    def __init__(
        self,
        machines: Sequence[Machine],
        settings: DirectorSettings,
        surroundings: FleetSettings,
        projected_s: tuple[float, float],
    ) -> None:
        """Load is projected from the first to the last of `projected_s`."""
        self._gaps: dict[EndpointId, _Gaps] = {}
        self.projections = ProjectionWatch()
        self._token_times_s: dict[int, list[FloatArray]] = {}
        self._expected: dict[int, _Expected] = {}
        self._prefilled_s: dict[int, float] = {}
        self._step_predictions: dict[tuple[EndpointId, int], float] = {}
        super().__init__(machines, settings, surroundings, on_effect=self._note)
        self._projected_s = projected_s
        self.every(_WINDOW_S, self._predict_steps)
        self.every(_PROJECT_EVERY_S, self._project)

    # --- predictions ------------------------------------------------------------------------------------------------

    def _note(self, effect: Effect, now_s: float) -> None:
        match effect:
            case Dispatch():
                entry = self.director.ledger.get(RequestId(effect.request_id))
                assert entry is not None
                plan = entry.prefill
                self._expected[int(effect.request_id)] = _Expected(now_s, plan.predicted_s, plan.cached_tokens)
            case Handoff():
                self._prefilled_s[int(effect.request_id)] = now_s
            case _:
                pass

    def _predict_steps(self) -> None:
        window = round(self.kernel.now_s / _WINDOW_S)
        director = self.director
        for machine in self.world.machines:
            endpoint_id = machine.endpoint.id
            slot = director.inventory.slot_of(endpoint_id)
            decodes = 0 if slot is None else int(director.ledger.decoding_requests[slot])
            if slot is None or decodes == 0:
                continue
            context = float(director.ledger.decoding_tokens[slot])
            predicted = director.beliefs.step_times.predict_s(
                np.array([slot]), np.array([float(decodes)]), np.array([context])
            )
            self._step_predictions[endpoint_id, window] = float(predicted[0])

    def _project(self) -> None:
        first_s, last_s = self._projected_s
        if first_s <= self.kernel.now_s <= last_s:
            self.projections.sample(self.director, self.kernel.now_s)

    # --- what engines report ----------------------------------------------------------------------------------------

    def token(self, request_id: str, at_s: float) -> None:
        """See `world.Listener`."""
        self._tokens_came(request_id, np.array([at_s]))
        super().token(request_id, at_s)

    def tokens(self, event: TokensAdvanced) -> None:
        """See `world.LateListener`."""
        self._tokens_came(event.request_id, np.asarray(event.times_s, np.float64))
        super().tokens(event)

    def _tokens_came(self, request_id: str, times_s: FloatArray) -> None:
        index = int(request_id[:-1])
        decode = self.records[index].decode
        if request_id[-1] == "p" or decode is None or not len(times_s):
            return
        seen = self._token_times_s.setdefault(index, [])
        all_s = np.concatenate([seen[-1][-1:], times_s]) if seen else times_s
        seen.append(times_s)
        if len(all_s) < 2:
            return
        gaps = self._gaps.setdefault(decode, _Gaps())
        gaps.times_s.append(all_s[1:])
        gaps.gaps_s.append(np.diff(all_s))

    def tokens_by(self, index: int, times_s: FloatArray) -> FloatArray:
        """See `projections.TokensBy`."""
        came_s = np.concatenate(self._token_times_s[index])
        tokens = np.searchsorted(came_s, times_s, side="right").astype(np.float64)
        return np.where(tokens < len(came_s), tokens, np.nan)

    # --- the comparison ---------------------------------------------------------------------------------------------

    def step_times(self) -> ErrorSummary:
        """Median gap of each endpoint and second against what was predicted at its beginning.

        The median, because a preempted request's gap is no step; windows with few gaps do not count.
        """
        predicted, actual = [], []
        for endpoint_id, seen in self._gaps.items():
            times_s, gaps_s = np.concatenate(seen.times_s), np.concatenate(seen.gaps_s)
            windows = (times_s / _WINDOW_S).astype(np.int64)
            order = np.lexsort((gaps_s, windows))
            windows, gaps_s = windows[order], gaps_s[order]
            starts = np.flatnonzero(np.diff(windows, prepend=-1))
            for start, end in zip(starts, [*starts[1:], len(windows)], strict=True):
                expected_s = self._step_predictions.get((endpoint_id, int(windows[start])))
                if expected_s is not None and end - start >= _LEAST_GAPS:
                    predicted.append(expected_s)
                    actual.append(float(gaps_s[(start + end) // 2]))
        return ErrorSummary.of(np.array(predicted), np.array(actual))

    def prefill_times(self) -> ErrorSummary:
        """From dispatch to the end of prefill, the queue included."""
        predicted, actual = [], []
        for index, expected in self._expected.items():
            record = self.records[index]
            ended_s = self._prefilled_s.get(index) if record.prefill is not None else record.first_token_s
            if ended_s is not None and ended_s > expected.dispatched_s:
                predicted.append(expected.prefill_s)
                actual.append(ended_s - expected.dispatched_s)
        return ErrorSummary.of(np.array(predicted), np.array(actual))

    def prefixes(self, load: Load) -> PrefixSummary | None:
        """Cached tokens of every request that was prefilled."""
        if all(request.hash_ids is None for request in load.requests):
            return None
        found = [
            (self._expected[record.index].cached_tokens, record.cached_tokens, record.input_tokens)
            for record in self.records
            if record.cached_tokens is not None and record.index in self._expected
        ]
        expected, actual, prompts = (np.array(column, np.float64) for column in zip(*found, strict=True))
        total = prompts.sum()
        return PrefixSummary(
            requests=len(found),
            predicted_ratio=float(expected.sum() / total),
            actual_ratio=float(actual.sum() / total),
            missed_ratio=float(np.maximum(actual - expected, 0).sum() / total),
            imagined_ratio=float(np.maximum(expected - actual, 0).sum() / total),
        )
