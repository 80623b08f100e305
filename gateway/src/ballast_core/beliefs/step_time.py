"""How long one decode step takes on an endpoint: its hardware profile, recalibrated from observations.

A step's time is observed as the time between two tokens of a stream, together with the endpoint's load at that time.
The law (`ballast_core.profiles`) is kept; its parts get learned factors:

    t = c (overhead + a)  +  w (matrix multiplications and the host's cost for each decode)  +  v (KV reads)

The profile itself is c = overhead / (overhead + a), w = v = 1, and the result is a profile again.

Why three factors? An endpoint runs near one load for hours, and there the number of decodes and their context grow
together. Free coefficients would trade against each other and be far off at any other load. A single scale could not
express that a GPU reads KV more slowly than its profile states. The factors are the maximum a posteriori of a robust
weighted regression with the profile as prior: what the data do not determine stays at the profile. They are bounded and
never negative, so more load never predicts less time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.model_error import ErrorTracker, ModelError
from ballast_core.beliefs.stacked_profiles import StackedProfiles
from ballast_core.profiles import UNINFORMED_PROFILE, HardwareProfile

_MAD_TO_SIGMA = 1.4826
_OUTLIER_SIGMAS = 4.0
"""An error of this many standard deviations weighs a quarter."""
_MAX_ERROR = 1e3
_LEAST_SIGMA = 0.03
_LEAST_CHANGE = 0.1
"""A smaller median error keeps the long memory: with a short one, the prior would preserve the error."""
_SHORTEST_MEMORY_RATIO = 0.05
_ONES: FloatArray = np.eye(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeSettings:
    """How fast and how far a profile is corrected. docs/beliefs.md gives the reasons for the defaults."""

    memory_observations: float = 500.0
    """After this many further observations, an observation's weight has fallen to 1/e."""
    half_life_s: float = 600.0
    prior_observations: float = 0.5
    """Weight of a known profile, in observations: with 10 % noise, it is trusted to within 14 %."""
    uninformed_prior_observations: float = 0.01
    """The same for an endpoint whose hardware is unknown."""
    max_factor: float = 8.0
    """Each part of the law stays within this factor of its profile, slower or faster; the constant may vanish beside a
    floor `a`: without both a step would take no time."""
    uninformed_max_factor: float = 100.0
    """The same for an endpoint whose hardware is unknown."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        for name in ("memory_observations", "half_life_s", "prior_observations", "uninformed_prior_observations"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be above 0, not {getattr(self, name)!r}")
        for name in ("max_factor", "uninformed_max_factor"):
            if not 1 < getattr(self, name) < np.inf:
                raise ValueError(f"{name}: must be finite and above 1, not {getattr(self, name)!r}")


class StepTimeModel:
    """Step time of one endpoint."""

    def __init__(self, profile: HardwareProfile | None = None, settings: StepTimeSettings | None = None) -> None:
        """`profile`: the prior, a guess where its speed is not known; None if the hardware is unknown."""
        self.base = profile or UNINFORMED_PROFILE
        self.settings = settings or StepTimeSettings()
        known = self.base.speed_known
        self._prior = self.settings.prior_observations if known else self.settings.uninformed_prior_observations
        limit = self.settings.max_factor if known else self.settings.uninformed_max_factor
        expected = np.array([self.base.overhead_ms / (self.base.overhead_ms + self.base.a_ms), 1.0, 1.0])
        self._expected: FloatArray = expected
        least_constant = 0.0 if self.base.a_ms > 0 else 1.0 / limit
        self._lowest: FloatArray = np.array([least_constant, 1.0 / limit, 1.0 / limit])
        self._highest: FloatArray = np.full(3, limit)
        self._matrix: FloatArray = np.zeros((3, 3))
        self._vector: FloatArray = np.zeros(3)
        self._factors: FloatArray = expected
        self._profile: HardwareProfile | None = self.base
        self._updated_s: float | None = None
        self._errors = ErrorTracker(expected_ratio=0.2 if known else 1.0)

    @property
    def profile(self) -> HardwareProfile:
        """The recalibrated profile: predictions are the law with it."""
        if self._profile is None:
            base = self.base
            constant, work, reads = self.factors
            self._profile = replace(
                base,
                overhead_ms=constant * (base.overhead_ms + base.a_ms),
                a_ms=base.a_ms * work,
                d_ms_per_token=base.d_ms_per_token * work,
                k_ms_per_kv_token=base.k_ms_per_kv_token * reads,
                b_ms_per_seq=base.b_ms_per_seq * work,
            )
        return self._profile

    @property
    def factors(self) -> tuple[float, float, float]:
        """c, w, v of the module's formula."""
        constant, work, reads = (float(factor) for factor in self._factors)
        return constant, work, reads

    @property
    def error(self) -> ModelError:
        """Errors of the last predictions."""
        return self._errors.error

    def _parts_s(self, decodes: float, context_tokens: float) -> FloatArray:
        base = self.base
        count = round(decodes)
        constant_ms = base.overhead_ms + base.a_ms
        work_s = base.step_s(count, 0.0, 0.0, count) - base.overhead_ms / 1e3
        return np.array([constant_ms / 1e3, work_s, base.k_ms_per_kv_token * context_tokens / 1e3], np.float64)

    def observe(
        self, inter_token_s: float, decodes: float, context_tokens: float, *, now_s: float, prefill_tokens: float = 0.0
    ) -> bool:
        """Learn from the gap between two tokens of a stream (or a mean of several) and the endpoint's load meanwhile.

        `decodes`: number of running decodes; `context_tokens`: sum of their prompts and outputs so far. A gap that is
        known to contain a prefill is not used. Returns whether the observation could be used.
        """
        if prefill_tokens > 0 or not (0 < inter_token_s < np.inf and 1 <= decodes < np.inf):
            return False
        if not 0 <= context_tokens < np.inf:
            return False
        parts = self._parts_s(decodes, context_tokens)
        predicted = float(parts @ self._factors)
        error = min(inter_token_s / predicted - 1.0, _MAX_ERROR)
        weight = self._weigh_and_forget(error, now_s)
        shares = parts / predicted
        self._matrix += weight * (shares[:, None] * shares)
        self._vector += weight * (1.0 + error) * shares
        # Errors are relative to the prediction, so the prior must be too: on an endpoint eight times slower than its
        # profile, it would otherwise have 64 times its weight.
        slower = max(predicted / float(parts @ self._expected), 1.0)
        self._factors = self._solve(self._prior / slower**2)
        self._profile = None
        return True

    def _weigh_and_forget(self, error: float, now_s: float) -> float:
        """Decay the sums, and return the weight of a new observation.

        The weight is Geman and McClure's, centred on the median of recent errors and scaled by their spread: stragglers
        hardly count as long as they are fewer than half. If the endpoint itself changes, the median follows within
        about thirty observations. New observations then count fully, and the outdated ones are forgotten fast.
        """
        center, spread = self._errors.center_and_spread()
        self._errors.add(error)
        sigma = max(_MAD_TO_SIGMA * spread, _LEAST_SIGMA)
        changed = min(max(abs(center) / max(sigma, _LEAST_CHANGE) - 1.0, 0.0), 1.0)
        memory = self.settings.memory_observations * max(1.0 - changed, _SHORTEST_MEMORY_RATIO)
        factor = math.exp(-1.0 / memory)
        if self._updated_s is not None and now_s > self._updated_s:
            factor *= 0.5 ** ((now_s - self._updated_s) / self.settings.half_life_s)
        self._updated_s = now_s if self._updated_s is None else max(now_s, self._updated_s)
        self._matrix *= factor
        self._vector *= factor
        return 1.0 / (1.0 + ((error - center) / (_OUTLIER_SIGMAS * sigma)) ** 2) ** 2

    def _solve(self, prior: float) -> FloatArray:
        """The best factors within the bounds."""
        matrix = self._matrix + prior * _ONES
        vector = self._vector + prior * self._expected
        factors = np.asarray(np.linalg.solve(matrix, vector), np.float64)
        if not ((factors < self._lowest) | (factors > self._highest)).any():
            return factors
        return self._solve_within(matrix, vector)

    def _solve_within(self, matrix: FloatArray, vector: FloatArray) -> FloatArray:
        """The same where some are beyond: a factor beyond a bound is fixed there, and the rest solved again."""
        factors = self._expected.copy()
        free = np.ones(3, np.bool_)
        for _ in range(3):
            held = matrix[np.ix_(free, ~free)] @ factors[~free]
            factors[free] = np.linalg.solve(matrix[np.ix_(free, free)], vector[free] - held)
            outside = free & ((factors < self._lowest) | (factors > self._highest))
            factors = np.clip(factors, self._lowest, self._highest)
            if not outside.any():
                break
            free &= ~outside
            if not free.any():
                break
        return factors

    def predict_s(self, decodes: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """Seconds of a decode step (the TPOT at this load), for arrays of loads."""
        one = StackedProfiles()
        one.put(0, self.profile)
        return one.decode_step_s(np.zeros(1, np.int64), decodes, context_tokens)


class StepTimeBook:
    """Step times of all endpoints, by slot."""

    def __init__(self, settings: StepTimeSettings | None = None) -> None:
        self.settings = settings or StepTimeSettings()
        self._models: dict[int, StepTimeModel] = {}
        self._stacked = StackedProfiles()
        self._stale: set[int] = set()

    def add(self, slot: int, profile: HardwareProfile | None = None) -> None:
        """A new endpoint has this slot; learning starts from its profile."""
        self._models[slot] = StepTimeModel(profile, self.settings)
        self._stale.add(slot)

    def remove(self, slot: int) -> None:
        """The endpoint is gone."""
        if self._models.pop(slot, None) is not None:
            self._stale.discard(slot)
            self._stacked.clear(slot)

    def model(self, slot: int) -> StepTimeModel:
        """The slot's model. Raises `LookupError` if the slot has no endpoint."""
        if slot not in self._models:
            raise LookupError(f"slot {slot} has no endpoint")
        return self._models[slot]

    def observe(
        self,
        slot: int,
        inter_token_s: float,
        decodes: float,
        context_tokens: float,
        *,
        now_s: float,
        prefill_tokens: float = 0.0,
    ) -> bool:
        """See `StepTimeModel.observe`; an unknown slot is ignored."""
        model = self._models.get(slot)
        if model is None or not model.observe(
            inter_token_s, decodes, context_tokens, now_s=now_s, prefill_tokens=prefill_tokens
        ):
            return False
        self._stale.add(slot)
        return True

    def predict_s(self, slots: IntArray, decodes: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """Seconds of a decode step of each slot's endpoint at these loads, which broadcast against the slots.

        A slot without an endpoint is predicted as unknown hardware.
        """
        self._refresh()
        return self._stacked.decode_step_s(slots, decodes, context_tokens)

    def columns(self, slots: int) -> FloatArray:
        """See `StackedProfiles.columns`: the recalibrated profiles."""
        if self._stale:
            self._refresh()
        return self._stacked.columns(slots)

    def _refresh(self) -> None:
        for slot in self._stale:
            self._stacked.put(slot, self._models[slot].profile)
        self._stale.clear()
