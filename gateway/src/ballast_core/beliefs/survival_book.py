"""Survival curves by traffic class, and one pooled curve that a class falls back on while it has few requests.

A class is any hashable key that the caller distinguishes: model, adapter, objective. Each class gets a class slot, a
small integer that indexes the rows of `SurvivalTables`: requests of all classes are looked up in one numpy pass.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival import CensoringAwareSurvival, SurvivalEstimator, heavy_tailed_prior
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables

POOLED = 0
"""Class slot of the curve of all traffic, also used by classes for which no slot is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalSettings:
    """How the curves are learned. docs/beliefs/output-length.md gives the reasons for the defaults."""

    buckets: Buckets = field(default_factory=Buckets)
    max_classes: int = 32
    refresh_s: float = 0.25
    """Tables are rebuilt at most this often."""
    idle_s: float = 6 * 3600.0
    """A class slot is reused only if its class has not been seen for this long: none of its requests runs then."""
    prior_scale_tokens: float = 512.0
    prior_shape: float = 2.0
    """The Lomax curve before any request has ended; these values give a mean of 512 and a median of 212 tokens."""
    estimator: Callable[[Buckets], SurvivalEstimator] = CensoringAwareSurvival

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        if self.max_classes < 0:
            raise ValueError(f"max_classes: must be 0 or more, not {self.max_classes!r}")
        for name in ("refresh_s", "idle_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: must be 0 or more, not {getattr(self, name)!r}")


@dataclass(slots=True)
class _Class:
    key: Hashable
    estimator: SurvivalEstimator
    named_s: float


class SurvivalBook:
    """Learns the curves of all classes. Every update carries its time in seconds on the caller's clock."""

    def __init__(self, settings: SurvivalSettings | None = None) -> None:
        self.settings = settings or SurvivalSettings()
        buckets = self.settings.buckets
        self._prior = heavy_tailed_prior(buckets, self.settings.prior_scale_tokens, self.settings.prior_shape)
        self._pooled = self.settings.estimator(buckets)
        self._classes: list[_Class] = []
        """The class of class slot s has index s - 1."""
        self._slots: dict[Hashable, int] = {}
        self._tables: SurvivalTables | None = None
        self._built_s = -np.inf
        self._changed = True

    def use(self, estimator: Callable[[Buckets], SurvivalEstimator]) -> None:
        """Learn by this estimator from now on. If that is another one all curves begin anew; class slots stay."""
        if estimator is self.settings.estimator:
            return
        self.settings = replace(self.settings, estimator=estimator)
        self._pooled = estimator(self.settings.buckets)
        for known in self._classes:
            known.estimator = estimator(self.settings.buckets)
        self._tables = None

    def slot(self, key: Hashable, now_s: float) -> int:
        """The class's slot; POOLED for None, and if all slots belong to classes in use."""
        if key is None:
            return POOLED
        slot = self._slots.get(key)
        if slot is not None:
            self._classes[slot - 1].named_s = now_s
            return slot
        fresh = _Class(key, self.settings.estimator(self.settings.buckets), now_s)
        if len(self._classes) < self.settings.max_classes:
            self._classes.append(fresh)
            slot = len(self._classes)
            self._tables = None  # it has no row yet
        else:
            slot = 1 + min(range(len(self._classes)), key=lambda index: self._classes[index].named_s, default=-1)
            if slot == POOLED or now_s - self._classes[slot - 1].named_s < self.settings.idle_s:
                return POOLED
            del self._slots[self._classes[slot - 1].key]
            self._classes[slot - 1] = fresh
            self._tables = None  # a row must never show its former class
        self._slots[key] = slot
        return slot

    def known_slot(self, key: Hashable) -> int:
        """The class's slot if it has one, otherwise POOLED; unlike `slot`, it changes nothing."""
        return self._slots.get(key, POOLED)

    def ended(
        self, key: Hashable, output_tokens: float, *, censored: bool, now_s: float, counted_tokens: float = 0.0
    ) -> None:
        """A request of this class ended; see `SurvivalEstimator.ended`. Raises ValueError for an impossible length."""
        slot = self.slot(key, now_s)
        self._pooled.ended(output_tokens, censored=censored, now_s=now_s, counted_tokens=counted_tokens)
        if slot != POOLED:
            self._classes[slot - 1].estimator.ended(
                output_tokens, censored=censored, now_s=now_s, counted_tokens=counted_tokens
            )
        self._changed = True

    def aged(self, slots: NDArray[np.int64], from_tokens: FloatArray, to_tokens: FloatArray, now_s: float) -> None:
        """Requests in flight grew without ending; one array entry per request. Once a second is often enough."""
        self._pooled.aged(from_tokens, to_tokens, now_s)
        for slot in np.unique(slots):
            if slot != POOLED:
                of_class = slots == slot
                self._classes[slot - 1].estimator.aged(from_tokens[of_class], to_tokens[of_class], now_s)
        self._changed = True

    def tables(self, now_s: float) -> SurvivalTables:
        """All curves, at most `refresh_s` old: row POOLED for all traffic, and one row for each class slot in use."""
        stale = self._changed and now_s - self._built_s >= self.settings.refresh_s
        if self._tables is None or stale:
            self._tables = self._build()
            self._built_s, self._changed = now_s, False
        return self._tables

    def _build(self) -> SurvivalTables:
        pooled = self._pooled.survival(self._prior)
        survival = np.tile(pooled, (len(self._classes) + 1, 1))
        samples = np.zeros_like(survival)
        samples[POOLED] = self._pooled.effective_samples()
        for slot, known in enumerate(self._classes, start=1):
            survival[slot] = known.estimator.survival(pooled)
            samples[slot] = known.estimator.effective_samples()
        return SurvivalTables(self.settings.buckets, survival, samples)
