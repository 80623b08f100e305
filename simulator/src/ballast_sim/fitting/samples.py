"""The samples of a fit: durations of engine steps, single or several together, and the work done in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ballast_core.profiles import HardwareProfile

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured duration.

    `parts` are the steps that it covers: (how many steps, tokens computed in each). `decode_context_tokens`,
    `prefill_pairs` and `decodes` are sums over these steps, as in the law of `ballast_core.profiles`.
    """

    duration_ms: float
    parts: tuple[tuple[float, float], ...]
    decode_context_tokens: float
    prefill_pairs: float
    decodes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Many samples as arrays: shape (samples,), and (parts,) for the steps that they cover."""

    duration_ms: FloatArray
    steps: FloatArray
    decode_context_tokens: FloatArray
    prefill_pairs: FloatArray
    decodes: FloatArray
    part_sample: IntArray
    part_steps: FloatArray
    part_tokens: FloatArray

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Samples:
        """The arrays of single samples."""
        rows = list(samples)
        parts = [(index, *part) for index, row in enumerate(rows) for part in row.parts]
        sample, steps, tokens = (np.array(column) for column in zip(*parts, strict=True)) if parts else ([], [], [])
        return cls(
            duration_ms=np.array([row.duration_ms for row in rows], dtype=float),
            steps=np.array([sum(count for count, _ in row.parts) for row in rows], dtype=float),
            decode_context_tokens=np.array([row.decode_context_tokens for row in rows], dtype=float),
            prefill_pairs=np.array([row.prefill_pairs for row in rows], dtype=float),
            decodes=np.array([row.decodes for row in rows], dtype=float),
            part_sample=np.asarray(sample, dtype=np.intp),
            part_steps=np.asarray(steps, dtype=float),
            part_tokens=np.asarray(tokens, dtype=float),
        )

    def __len__(self) -> int:
        return len(self.duration_ms)

    def where(self, chosen: BoolArray) -> Samples:
        """The samples where `chosen` (shape (samples,)) is true."""
        parts = chosen[self.part_sample]
        renumbered = np.cumsum(chosen) - 1
        own = {name: getattr(self, name)[chosen] for name in _PER_SAMPLE}
        return Samples(
            **own,
            part_sample=renumbered[self.part_sample[parts]].astype(np.intp),
            part_steps=self.part_steps[parts],
            part_tokens=self.part_tokens[parts],
        )

    def sums_by_sample(self, by_part: FloatArray) -> FloatArray:
        """Sums of a value of each step over the steps of each sample; `by_part` has shape (parts,)."""
        return np.bincount(self.part_sample, weights=self.part_steps * by_part, minlength=len(self)).astype(float)

    def sums(self) -> dict[str, FloatArray]:
        """The factor of each coefficient that multiplies a sum, shape (samples,)."""
        return {
            "k_ms_per_kv_token": self.decode_context_tokens,
            "s_ms_per_pair": self.prefill_pairs,
            "b_ms_per_seq": self.decodes,
        }

    def predict_ms(self, profile: HardwareProfile) -> FloatArray:
        """Durations in ms by the law with a profile's coefficients; shape (samples,)."""
        matmul_ms = fourth_power_mean(profile.a_ms, profile.d_ms_per_token * self.part_tokens)
        predicted: FloatArray = (
            profile.overhead_ms * self.steps
            + self.sums_by_sample(matmul_ms)
            + profile.k_ms_per_kv_token * self.decode_context_tokens
            + profile.s_ms_per_pair * self.prefill_pairs
            + profile.b_ms_per_seq * self.decodes
        )
        return predicted


_PER_SAMPLE = tuple(field.name for field in fields(Samples) if not field.name.startswith("part_"))


def fourth_power_mean(floor_ms: float, arithmetic_ms: FloatArray) -> FloatArray:
    """(a^4 + x^4)^(1/4), shape as `arithmetic_ms`."""
    mean: FloatArray = np.sqrt(np.sqrt(floor_ms**4 + (arithmetic_ms * arithmetic_ms) ** 2))
    return mean


def chunk_parts(tokens: int, budget: int) -> tuple[tuple[float, float], ...]:
    """The steps that compute a prompt of `tokens` alone in chunks of at most `budget` tokens."""
    whole, rest = divmod(tokens, budget)
    parts: Sequence[tuple[float, float]] = ((whole, budget), (1, rest))
    return tuple((float(count), float(size)) for count, size in parts if count and size)
