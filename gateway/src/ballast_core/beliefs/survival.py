"""Two estimators of the survival curve of output length, S(x) = P(L > x), learned from requests as they end.

`EmaSurvival` is SIBYL's (Eq. 4, corrected). It takes the number of generated tokens as the request's length, so a cap
of 500 tokens looks like an end at 500. `CensoringAwareSurvival` is a Kaplan-Meier estimate on buckets with exponential
forgetting. A request that was cancelled, or cut off by its `max_tokens`, is censored: all that is learned from it is
that L exceeds what it generated.

Both return the curve at bucket boundaries. Where they have no data they fall back on a parent curve.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from ballast_core import kernel
from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival_tables import Buckets


class SurvivalEstimator(Protocol):
    """Learns one curve. Lengths in output tokens, times in seconds on the caller's clock."""

    def ended(self, output_tokens: float, *, censored: bool, now_s: float, counted_tokens: float = 0.0) -> None:
        """A request ended after `output_tokens`; censored if it was cut off (length limit, cancelled, failed).

        Its first `counted_tokens` have been counted by `aged` already.
        """
        ...

    def aged(self, from_tokens: FloatArray, to_tokens: FloatArray, now_s: float) -> None:
        """Requests in flight grew from one age to another without ending; one array entry per request."""
        ...

    def survival(self, parent: FloatArray) -> FloatArray:
        """S at the boundaries, shape (count + 1,): S[0] = 1, non-increasing, in [0, 1]. `parent` has that shape too."""
        ...

    def effective_samples(self) -> FloatArray:
        """Total weight of the requests observed at each boundary, shape (count + 1,)."""
        ...


def heavy_tailed_prior(buckets: Buckets, scale_tokens: float, shape: float) -> FloatArray:
    """Lomax curve (1 + x / scale) ** -shape at the boundaries: the curve before any request has ended."""
    if not (scale_tokens > 0 and shape > 0):
        raise ValueError(f"scale_tokens, shape: must be above 0, not {scale_tokens!r}, {shape!r}")
    return np.asarray((1.0 + buckets.boundaries / scale_tokens) ** -shape, np.float64)


class EmaSurvival:
    """SIBYL's estimator: at each end S(l) <- alpha S(l) + (1 - alpha) 1[L > l], for EVERY boundary l (Eq. 4).

    The paper limits the update to l <= L, which can only raise S, and writes >= where Eq. 3 has >: see
    docs/beliefs/output-length.md.
    It gives no initial S either; here it is the parent curve, whose weight after n ends is alpha ** n.
    """

    def __init__(self, buckets: Buckets, alpha: float = 0.998) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"alpha: must be above 0 and below 1, not {alpha!r}")
        self.buckets = buckets
        self.alpha = alpha
        self._learned: FloatArray = np.zeros(buckets.count + 1)
        """Eq. 4 started from S = 0."""
        self._parent_weight = 1.0

    def ended(self, output_tokens: float, *, censored: bool, now_s: float, counted_tokens: float = 0.0) -> None:
        """Update every boundary. The paper's estimator ignores censoring and time."""
        del censored, now_s, counted_tokens
        self._learned *= self.alpha
        exceeded = int(np.ceil(_checked(output_tokens) / self.buckets.step_tokens))
        self._learned[:exceeded] += 1.0 - self.alpha
        self._parent_weight *= self.alpha

    def aged(self, from_tokens: FloatArray, to_tokens: FloatArray, now_s: float) -> None:
        """Changes nothing: this estimator learns from ended requests only."""

    def survival(self, parent: FloatArray) -> FloatArray:
        """S at the boundaries."""
        curve = self._learned + self._parent_weight * parent
        curve[0] = 1.0
        return np.minimum.accumulate(np.clip(curve, 0.0, 1.0))

    def effective_samples(self) -> FloatArray:
        """Sum of the weights alpha ** age of the requests that exceeded each boundary."""
        samples = self._learned / (1.0 - self.alpha)
        samples[0] = (1.0 - self._parent_weight) / (1.0 - self.alpha)
        return samples


class CensoringAwareSurvival:
    """Kaplan-Meier on buckets: S is the product of 1 - deaths / at risk, both forgotten exponentially.

    A request is at risk in each bucket that it lived through or ended in, and for its share of the bucket in which it
    was cut off. Each bucket also counts `prior_requests` requests that die at the parent's rate, so a bucket with few
    requests follows the parent.

    `aged` counts the life of running requests as it happens. Without it, the curve would be too short at the start and
    after a change of traffic, because short requests end first.
    """

    def __init__(
        self, buckets: Buckets, alpha: float = 0.9995, half_life_s: float = 3600.0, prior_requests: float = 0.3
    ) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha: must be above 0 and at most 1, not {alpha!r}")
        if not half_life_s > 0:
            raise ValueError(f"half_life_s: must be above 0, not {half_life_s!r}")
        if not 0 <= prior_requests < np.inf:
            raise ValueError(f"prior_requests: must be finite and 0 or more, not {prior_requests!r}")
        self.buckets = buckets
        self.alpha = alpha
        self.half_life_s = half_life_s
        self.prior_requests = prior_requests
        self._counted: FloatArray = np.zeros((2, buckets.count))
        """Both counts of each bucket, forgotten together: `_deaths` and `_at_risk` are its rows."""
        self._deaths, self._at_risk = self._counted
        self._updated_s: float | None = None

    def ended(self, output_tokens: float, *, censored: bool, now_s: float, counted_tokens: float = 0.0) -> None:
        """Count the rest of a request's life, and its death unless it was censored."""
        self._forget(now_s, self.alpha)
        count, step = self.buckets.count, self.buckets.step_tokens
        until = _checked(output_tokens) / step
        since = min(max(counted_tokens / step, 0.0), until)
        if not censored:
            # An end in (b step, (b + 1) step] belongs to bucket b, and an empty output to the first.
            died_in = max(math.ceil(until) - 1, 0)
            until = died_in + 1.0
            if died_in < count:
                self._deaths[died_in] += 1.0
        first, last = int(since), int(until)
        if first >= count:
            return
        if first == last:
            self._at_risk[first] += until - since
            return
        self._at_risk[first] += first + 1 - since
        self._at_risk[first + 1 : last] += 1.0
        if last < count:
            self._at_risk[last] += until - last

    def aged(self, from_tokens: FloatArray, to_tokens: FloatArray, now_s: float) -> None:
        """Count the life of requests in flight between two ages."""
        self._forget(now_s, 1.0)
        start = np.maximum(np.asarray(from_tokens, np.float64), 0.0)
        self._at_risk += self._lived(np.maximum(to_tokens, start)) - self._lived(start)

    def _lived(self, ages: FloatArray) -> FloatArray:
        """Number of requests of these ages that lived through each bucket; the last bucket of each counts in part."""
        count = self.buckets.count
        position = np.minimum(ages / self.buckets.step_tokens, float(count))
        bucket = position.astype(np.intp)
        part = np.bincount(bucket, weights=position - bucket, minlength=count + 1)
        whole = np.bincount(bucket, minlength=count + 1)[::-1].cumsum()[::-1]
        return np.asarray(part[:count] + whole[1:], np.float64)

    def _forget(self, now_s: float, factor: float) -> None:
        if self._updated_s is not None and now_s > self._updated_s:
            factor *= 0.5 ** ((now_s - self._updated_s) / self.half_life_s)
        self._updated_s = now_s if self._updated_s is None else max(now_s, self._updated_s)
        if factor < 1.0:
            self._counted *= factor

    def survival(self, parent: FloatArray) -> FloatArray:
        """S at the boundaries."""
        prior = self.prior_requests
        if (compiled := kernel.active()) is not None:
            curve = np.empty(self.buckets.count + 1)
            compiled.kaplan_meier(curve, parent, self._at_risk, self._deaths, prior)
            return curve
        parent_hazard = _hazard(parent)
        weight = self._at_risk + prior
        hazard = np.divide(self._deaths + prior * parent_hazard, weight, out=parent_hazard.copy(), where=weight > 1e-12)
        curve = np.ones(self.buckets.count + 1)
        np.cumprod(1.0 - np.clip(hazard, 0.0, 1.0), out=curve[1:])
        return curve

    def effective_samples(self) -> FloatArray:
        """Weight of the requests at risk in the bucket that begins at each boundary; 0 at the last."""
        samples = np.zeros(self.buckets.count + 1)
        samples[:-1] = self._at_risk
        return samples


def _hazard(curve: FloatArray) -> FloatArray:
    """Share of the requests alive at each boundary that end before the next one.

    Where the curve has vanished nothing is known. There, a request doubles its age with probability 1/2 (S ~ 1 / x).
    """
    unknown = 1.0 / np.arange(2.0, len(curve) + 1.0)
    return np.subtract(
        1.0, np.divide(curve[1:], curve[:-1], out=1.0 - unknown, where=curve[:-1] > 1e-9), dtype=np.float64
    )


def _checked(output_tokens: float) -> float:
    if not 0 <= output_tokens < np.inf:
        raise ValueError(f"output_tokens: must be finite and 0 or more, not {output_tokens!r}")
    return float(output_tokens)
