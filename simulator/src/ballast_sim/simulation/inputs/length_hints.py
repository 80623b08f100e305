"""A predictor of output lengths, simulated: the truth with an error of known size.

It predicts the output to come. The error of a request keeps its sign and its quantile for the request's whole life (one
normal draw, seeded): a predictor that takes an answer for long does so again a few tokens later. Its size may shrink
with the tokens generated so far, as ARES measured (section 4.3).
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass

from ballast_sim.settings import SettingError

_SIGMA_PER_MAE = math.sqrt(math.pi / 2)
"""Of a normal error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthHints:
    """The predictor's errors, and whether there is a predictor.

    The mean error is `mae_tokens` + `mae_ratio` * tokens to come / (1 + tokens so far / `halved_after_tokens`).
    A prediction is never below one token to come, so errors of the size of the output are smaller than asked for.
    """

    known: bool = True
    """Whether there is a predictor at all."""
    mae_tokens: float = 0.0
    mae_ratio: float = 0.0
    halved_after_tokens: float = math.inf
    """Tokens after which the relative error is half of what the prompt alone allows; infinity: it never shrinks."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        for name in ("mae_tokens", "mae_ratio"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(name, f"must be 0 or more and finite, not {getattr(self, name)!r}")
        if not self.halved_after_tokens > 0:
            raise SettingError("halved_after_tokens", f"must be above 0, not {self.halved_after_tokens!r}")

    def __str__(self) -> str:
        """As `parse` reads it."""
        if not self.known:
            return "none"
        if self == ARES_LIKE:
            return "ares"
        if self.mae_ratio:
            return f"noisy:{100 * self.mae_ratio:g}%"
        return f"noisy:{self.mae_tokens:g}" if self.mae_tokens else "oracle"

    @classmethod
    def parse(cls, text: str) -> LengthHints:
        """Reads `none`, `oracle`, `noisy:100` (tokens), `noisy:60%` (of the output to come), `noisy:sigma=100`, `ares`.

        Raises ValueError naming what is wrong.
        """
        named = {"none": NO_HINTS, "oracle": cls(), "ares": ARES_LIKE}
        if text in named:
            return named[text]
        kind, _, size = text.partition(":")
        number = size.removeprefix("sigma=").removesuffix("%")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        relative, deviation = size.endswith("%"), size.startswith("sigma=")
        if kind != "noisy" or not 0 <= value < math.inf or (relative and deviation):
            raise SettingError(
                "lengths",
                f"cannot read {text!r}; write none, oracle, ares, noisy:100 (mean error in tokens), "
                "noisy:sigma=100 (standard deviation) or noisy:60% (of the output to come)",
            )
        if relative:
            return cls(mae_ratio=value / 100)
        return cls(mae_tokens=value / _SIGMA_PER_MAE if deviation else value)

    @property
    def changes(self) -> bool:
        """Whether later predictions of the whole length differ from the first."""
        return self.known and self.mae_ratio > 0

    def mae_of(self, remaining_tokens: int, generated_tokens: int) -> float:
        """The mean absolute error in tokens."""
        share = self.mae_ratio / (1 + generated_tokens / self.halved_after_tokens)
        return self.mae_tokens + share * remaining_tokens

    def output_tokens(self, seed: int, index: int, output_tokens: int, generated_tokens: int = 0) -> float | None:
        """The whole output's length as predicted for the run's request `index` when it has so many tokens.

        None without a predictor.
        """
        if not self.known:
            return None
        remaining = output_tokens - generated_tokens
        mae = self.mae_of(remaining, generated_tokens)
        if not mae:
            return float(output_tokens)
        error = _normal_draw(seed, index) * (_SIGMA_PER_MAE * mae)
        return generated_tokens + max(1.0, remaining + error)


@functools.lru_cache(maxsize=1 << 17)
def _normal_draw(seed: int, index: int) -> float:
    """Of one request: kept, for a prediction that changes is asked for every few tokens."""
    return random.Random(f"lengths {seed} {index}").gauss(0.0, 1.0)


NO_HINTS = LengthHints(known=False)

ARES_LIKE = LengthHints(mae_ratio=18_256 / 31_000, halved_after_tokens=2_206.0)
"""ARES's predictor by the two figures that the paper gives (4.3): of outputs of 30-32K tokens the mean absolute error
is 18,256 tokens from the prompt alone and 2,929 after 8,000 tokens, 59 % and 12.7 % of what is to come."""
