"""Fit the coefficients of the step-time law (`ballast_core.profiles`) to measured durations.

Given the knee r = a / d, the tokens from which a step is bound by arithmetic, the law is linear in its coefficients:

    t = overhead (steps) + d sum (r^4 + T^4)^(1/4) + k (contexts) + s (pairs) + b (decodes)

so the fit is a search over one number with a non-negative least squares inside. Residuals are relative (a 5 ms step
counts as much as a 500 ms prefill) and weighted by Tukey's biweight, which is bounded: steps that were disturbed (a
garbage collection, a lost packet) get no weight. A coefficient that the data do not determine keeps the value of a base
profile, and is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.fitting.nnls import non_negative_least_squares
from ballast_sim.fitting.samples import BoolArray, FloatArray, Samples, fourth_power_mean

OVERHEAD, FLOOR, SLOPE = "overhead_ms", "a_ms", "d_ms_per_token"
COEFFICIENTS = (OVERHEAD, FLOOR, SLOPE, "k_ms_per_kv_token", "s_ms_per_pair", "b_ms_per_seq")
KEEP_FIRST = (OVERHEAD, "b_ms_per_seq", "s_ms_per_pair", SLOPE, "k_ms_per_kv_token", FLOOR)
"""Where the data cannot separate coefficients, the order in which they keep the base's value."""

MIN_SAMPLES = 12
HELD_OUT_EVERY = 4
LARGEST_UNSURE_RATIO = 0.25  # standard error over value; above, the data do not determine it
VANISHING_RATIO = 0.1  # of the base's value; below, a coefficient came out as next to nothing
LARGEST_UNSURE_VANISHED_RATIO = 0.05  # standard error over the base's value: to vanish needs better evidence
WORSE_RATIO = 1.1  # a base's value that lets the mean error grow by more contradicts the data
SMALLEST_SHARE_RATIO = 1e-3  # of the time of any sample; below, the data do not show the coefficient
NOISE_FLOOR_RATIO = 0.02  # residuals up to 4.7 times this are never taken for disturbances
EXACT_RATIO = 1e-6
BIWEIGHT = 4.685
_NORMAL_MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
_SMALLEST_MS = 1e-9
_ROUNDS = 6
_GRID = 48
_GOLDEN = (np.sqrt(5.0) - 1) / 2


class NotEnoughSamples(ValueError):
    """There is too little to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors |predicted - measured| / measured, and the share of the variance that is explained."""

    samples: int
    mean_ratio: float
    p90_ratio: float
    max_ratio: float
    r2: float | None
    """None where all samples took the same time: there is no variance to explain."""

    @classmethod
    def of(cls, samples: Samples, profile: HardwareProfile) -> Errors:
        """The errors of `profile` on `samples`, which must not be empty."""
        predicted, measured = samples.predict_ms(profile), samples.duration_ms
        ratios = np.abs(predicted - measured) / measured
        spread = float(np.sum((measured - measured.mean()) ** 2))
        missed = float(np.sum((predicted - measured) ** 2))
        return cls(
            samples=len(samples),
            mean_ratio=float(ratios.mean()),
            p90_ratio=float(np.percentile(ratios, 90)),
            max_ratio=float(ratios.max()),
            r2=1 - missed / spread if measured.min() < measured.max() else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """A profile with fitted coefficients, and how good they are.

    `kept` names the coefficients that have the base's value, `unsure` those that are fitted and uncertain, each with
    the reason. The held-out samples were not used for it.
    """

    profile: HardwareProfile
    kept: Mapping[str, str]
    unsure: Mapping[str, str]
    train_samples: Samples
    held_out_samples: Samples

    def errors_of(self, profile: HardwareProfile) -> tuple[Errors, Errors]:
        """Errors of a profile, such as the rounded one, on the samples of the fit and on the held-out ones."""
        return Errors.of(self.train_samples, profile), Errors.of(self.held_out_samples, profile)

    @property
    def train(self) -> Errors:
        """On the samples that the fit saw."""
        return Errors.of(self.train_samples, self.profile)

    @property
    def held_out(self) -> Errors:
        """On the samples that it did not see."""
        return Errors.of(self.held_out_samples, self.profile)

    def warnings(self) -> list[str]:
        """Warnings for the user of the profile."""
        found: list[str] = []
        r2 = self.held_out.r2
        if self.held_out.mean_ratio > 0.05 or self.held_out.p90_ratio > 0.15:
            found.append(
                f"the fit is poor: held-out error mean {self.held_out.mean_ratio:.1%}, p90 "
                f"{self.held_out.p90_ratio:.1%}; look for other load on the engine, more than one engine behind the "
                "file, prefix cache hits, or speculative decoding"
            )
        elif self.held_out.mean_ratio > 0.01 and (r2 is None or r2 < 0.9):
            found.append(
                f"held-out R2 is {'not defined' if r2 is None else f'{r2:.2f}'} (largest error "
                f"{self.held_out.max_ratio:.0%}): the data vary little or hold disturbed samples; measure under a load "
                "that comes and goes"
            )
        return found


def held_out(samples: int, blocks: int) -> BoolArray:
    """Every fourth of `blocks` stretches of neighbours, shape (samples,): neighbours are too alike to judge by."""
    stretches = min(blocks, samples)
    chosen: BoolArray = (np.arange(samples) * stretches // samples) % HELD_OUT_EVERY == HELD_OUT_EVERY - 2
    return chosen


def fit_law(samples: Samples, base: HardwareProfile, *, blocks: int = 40) -> LawFit:
    """Fit the law to three quarters of `samples` and judge it by the rest; `blocks`: see `held_out`.

    Raises `NotEnoughSamples`.
    """
    train, rest = _split(samples, blocks)
    kept = {name: "the data do not show it" for name in COEFFICIENTS if not _shows(train, name)}
    unsure: dict[str, str] = {}
    profile, weights = _robust(train, base, kept)
    while doubtful := _doubtful(train, profile, base, kept, weights) - unsure.keys():
        name = min(doubtful, key=KEEP_FIRST.index)
        with_base = {**kept, name: "the data cannot separate it from the others"}
        other, other_weights = _robust(train, base, with_base)
        if _error(train, other) > _error(train, profile) * WORSE_RATIO + EXACT_RATIO:
            unsure[name] = f"the data hardly determine it, but contradict the base's {getattr(base, name):g}"
        else:
            profile, weights, kept = other, other_weights, with_base
    return LawFit(profile=profile, kept=kept, unsure=unsure, train_samples=train, held_out_samples=rest)


def fit_undisturbed(samples: Samples, base: HardwareProfile, kept: Mapping[str, str]) -> LawFit:
    """The same for tables of kernels, which nothing disturbed and which are no time series: every sample counts fully.

    Only the coefficients in `kept` have the base's value. Raises `NotEnoughSamples`.
    """
    train, rest = _split(samples, len(samples))
    profile = _Problem(train, base, kept, np.ones(len(train))).best()
    return LawFit(profile=profile, kept=kept, unsure={}, train_samples=train, held_out_samples=rest)


def _split(samples: Samples, blocks: int) -> tuple[Samples, Samples]:
    """The samples to fit and the held-out ones. Raises `NotEnoughSamples`."""
    if len(samples) < MIN_SAMPLES:
        raise NotEnoughSamples(
            f"{len(samples)} usable samples are too few to fit {len(COEFFICIENTS)} coefficients and to judge them; "
            f"{MIN_SAMPLES} are the least"
        )
    if not (samples.duration_ms > 0).all() or not np.isfinite(samples.duration_ms).all():
        raise ValueError("duration_ms: must be above 0 and finite in every sample")
    judged_by = held_out(len(samples), blocks)
    return samples.where(~judged_by), samples.where(judged_by)


def _shows(samples: Samples, name: str) -> bool:
    """Whether any sample shows this term of the law."""
    sums = samples.sums()
    return name not in sums or bool(sums[name].any())


# -- one fit -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Problem:
    """Weighted relative least squares: the coefficients not in `kept` are free; `weights` has shape (samples,)."""

    samples: Samples
    base: HardwareProfile
    kept: Mapping[str, str]
    weights: FloatArray

    def best(self) -> HardwareProfile:
        """The profile of least loss: a search over the knee, the one parameter that is not linear."""
        samples, base = self.samples, self.base
        longest_ms = float((samples.duration_ms / samples.steps).max())
        most, least = float(samples.part_tokens.max()), float(max(samples.part_tokens.min(), 1.0))
        match FLOOR in self.kept, SLOPE in self.kept:
            case False, False:
                return _search(lambda knee: self.at(knee, 1.0, scalable=True), least / 4, most * 4)
            case False, True:
                return _search(lambda floor: self.at(floor, base.d_ms_per_token), longest_ms * 1e-4, longest_ms)
            case True, False:
                return _search(lambda slope: self.at(base.a_ms, slope), longest_ms / most * 1e-4, longest_ms / least)
            case _:
                return self.at(base.a_ms, base.d_ms_per_token)[1]

    def at(self, floor_ms: float, slope_ms: float, *, scalable: bool = False) -> tuple[float, HardwareProfile]:
        """Loss and profile for given matrix products; `scalable`: times a factor that is found, too."""
        samples = self.samples
        matmul_ms = samples.sums_by_sample(fourth_power_mean(floor_ms, slope_ms * samples.part_tokens))
        terms = {OVERHEAD: samples.steps, **samples.sums()}
        columns = {name: column for name, column in terms.items() if name not in self.kept}
        rest_ms = samples.duration_ms - sum(getattr(self.base, name) * terms[name] for name in terms.keys() & self.kept)
        if scalable:
            columns[SLOPE] = matmul_ms
        else:
            rest_ms = rest_ms - matmul_ms
        row_weights = np.sqrt(self.weights) / samples.duration_ms
        matrix = np.array([column * row_weights for column in columns.values()]).reshape(len(columns), len(samples)).T
        values = non_negative_least_squares(matrix, rest_ms * row_weights)
        found = dict(zip(columns, values.tolist(), strict=True))
        factor = found.get(SLOPE, 0.0) if scalable else 1.0
        found |= {FLOOR: factor * floor_ms, SLOPE: factor * slope_ms}
        if found.get(OVERHEAD, self.base.overhead_ms) + found[FLOOR] <= 0:
            found[FLOOR] = _SMALLEST_MS
        loss = float(np.sum((matrix @ values - rest_ms * row_weights) ** 2))
        return loss, with_coefficients(self.base, found)


def with_coefficients(profile: HardwareProfile, values: Mapping[str, float]) -> HardwareProfile:
    """`profile` with some of `COEFFICIENTS` replaced."""
    numbers: dict[str, Any] = dict(values)
    return replace(profile, **numbers)


def _robust(samples: Samples, base: HardwareProfile, kept: Mapping[str, str]) -> tuple[HardwareProfile, FloatArray]:
    """The profile of least squares, reweighted until it converges; and the weights, shape (samples,)."""
    weights = np.ones(len(samples))
    profile = _Problem(samples, base, kept, weights).best()
    for _ in range(_ROUNDS):
        residuals = samples.predict_ms(profile) / samples.duration_ms - 1
        scale = max(_NORMAL_MAD * float(np.median(np.abs(residuals))), NOISE_FLOOR_RATIO)
        new = np.clip(1 - (residuals / (BIWEIGHT * scale)) ** 2, 0, None) ** 2
        if np.allclose(new, weights, atol=1e-3):
            break
        weights = new
        profile = _Problem(samples, base, kept, weights).best()
    return profile, weights


def _search(evaluate: Callable[[float], tuple[float, HardwareProfile]], low: float, high: float) -> HardwareProfile:
    """The best of a logarithmic grid, refined by golden section."""
    grid = np.geomspace(low, high, _GRID)
    losses = [evaluate(float(x))[0] for x in grid]
    best = int(np.argmin(losses))
    left, right = np.log(grid[max(best - 1, 0)]), np.log(grid[min(best + 1, _GRID - 1)])
    while right - left > 1e-7:
        inner_left, inner_right = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
        if evaluate(float(np.exp(inner_left)))[0] <= evaluate(float(np.exp(inner_right)))[0]:
            right = inner_right
        else:
            left = inner_left
    return evaluate(float(np.exp((left + right) / 2)))[1]


# -- what the data determine -------------------------------------------------------------------------------------------


def _doubtful(
    samples: Samples,
    profile: HardwareProfile,
    base: HardwareProfile,
    kept: Mapping[str, str],
    weights: FloatArray,
) -> set[str]:
    """Free coefficients whose value the data leave open: they hardly show, or others can replace them."""
    free = [name for name in COEFFICIENTS if name not in kept]
    vanished = {name for name in free if getattr(profile, name) < VANISHING_RATIO * getattr(base, name)}
    # Where a term has vanished, others may have replaced it: judge it at the size that the base gives it.
    sensitivity = _sensitivity(samples, with_coefficients(profile, {n: getattr(base, n) for n in vanished}), free)
    unseen = np.abs(sensitivity).max(axis=0) < SMALLEST_SHARE_RATIO
    if unseen.any():
        return {name for name, nothing in zip(free, unseen, strict=True) if nothing}
    residuals = samples.predict_ms(profile) / samples.duration_ms - 1
    weighted = sensitivity * np.sqrt(weights)[:, None]
    degrees = max(float(weights.sum()) - len(free), 1.0)
    noise = max(float(np.sqrt(np.sum(weights * residuals**2) / degrees)), EXACT_RATIO)
    information = weighted.T @ weighted
    lengths = np.sqrt(np.diag(information))
    values, directions = np.linalg.eigh(information / np.outer(lengths, lengths))
    variances = (directions**2 / np.maximum(values, np.finfo(float).eps)).sum(axis=1)  # a flat direction is unsure
    unsure = noise * np.sqrt(variances) / lengths
    limits = [LARGEST_UNSURE_VANISHED_RATIO if name in vanished else LARGEST_UNSURE_RATIO for name in free]
    return {name for name, ratio, limit in zip(free, unsure, limits, strict=True) if ratio > limit}


def _error(samples: Samples, profile: HardwareProfile) -> float:
    """Mean relative error, that of disturbed samples cut."""
    residuals = np.abs(samples.predict_ms(profile) / samples.duration_ms - 1)
    return float(np.minimum(residuals, BIWEIGHT * NOISE_FLOOR_RATIO).mean())


def _sensitivity(samples: Samples, profile: HardwareProfile, names: list[str]) -> FloatArray:
    """Relative change of each duration for a relative change of each coefficient, shape (samples, coefficients)."""
    a4, dt4 = profile.a_ms**4, (profile.d_ms_per_token * samples.part_tokens) ** 4
    power = np.maximum(a4 + dt4, np.finfo(float).tiny) ** -0.75
    gradients = {
        OVERHEAD: samples.steps,
        FLOOR: samples.sums_by_sample(power * profile.a_ms**3),
        SLOPE: samples.sums_by_sample(power * profile.d_ms_per_token**3 * samples.part_tokens**4),
        **samples.sums(),
    }
    columns = [gradients[name] * getattr(profile, name) / samples.duration_ms for name in names]
    return np.stack(columns, axis=1)
