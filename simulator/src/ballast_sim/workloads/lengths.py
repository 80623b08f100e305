"""Distributions of token counts.

Mixtures of lognormals (weight, mu, sigma), cut to [lowest, cap]; with probability `capped_ratio` a length is the cap
itself, as where a benchmark limits outputs.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Pair: TypeAlias = Callable[[random.Random], tuple[int, int]]
"""Draws the input and output tokens of a request."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts."""

    mixture: tuple[tuple[float, float, float], ...]
    cap: int
    lowest: int = 1
    capped_ratio: float = 0.0

    def draw(self, rng: random.Random, cap: int | None = None) -> int:
        """One length; `cap` overrides the distribution's own."""
        limit = self.cap if cap is None else cap
        if self.capped_ratio and rng.random() < self.capped_ratio:
            return limit
        (_, mu, sigma), *others = self.mixture
        if others:
            weights = [weight for weight, _, _ in self.mixture]
            _, mu, sigma = rng.choices(self.mixture, weights)[0]
        return max(self.lowest, min(limit, round(rng.lognormvariate(mu, sigma))))


def lognormal(mean: float, sigma: float, cap: int, lowest: int = 1) -> Lengths:
    """A lognormal by its mean (before it is cut) and the deviation of its logarithm."""
    return Lengths(((1.0, math.log(mean) - sigma**2 / 2, sigma),), cap, lowest)


def independent(inputs: Lengths, outputs: Lengths) -> Pair:
    """Input and output lengths, independent of each other."""
    return lambda rng: (inputs.draw(rng), outputs.draw(rng))


def within(window: int, inputs: Lengths, outputs: Lengths) -> Pair:
    """Outputs that end where the model's window does."""

    def pair(rng: random.Random) -> tuple[int, int]:
        input_tokens = inputs.draw(rng)
        return input_tokens, outputs.draw(rng, window - input_tokens)

    return pair


def uniform(inputs: tuple[int, int], outputs: tuple[int, int]) -> Pair:
    """Both uniform, bounds included."""
    return lambda rng: (rng.randint(*inputs), rng.randint(*outputs))


def mixed(share: float, one: Pair, other: Pair) -> Pair:
    """`share` of the requests from `one`, the rest from `other`."""
    return lambda rng: (one if rng.random() < share else other)(rng)
