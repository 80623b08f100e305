"""Built-in workloads: Poisson arrivals, lengths from published statistics. Complete without any data file.

Lengths are mixtures of lognormals (weight, mu, sigma), cut to [lowest, cap]; with probability `capped_ratio` a length
is the cap itself, as where a benchmark limits outputs. The parameters of `sharegpt-reasoning`, `zeta` and
`alpaca-reasoning` were fitted to the means, deviations and percentiles that SIBYL (arXiv; ShareGPT and Zeta on
Qwen3-32B) and ARES (Alpaca) publish.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

from ballast_sim.workloads.request import WorkloadRequest


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


@dataclass(frozen=True, slots=True)
class Generator:
    """One built-in workload."""

    name: str
    explanation: str
    default_rate_rps: float
    pair: Callable[[random.Random], tuple[int, int]]

    def requests(self, rate_rps: float, seed: int) -> Iterator[WorkloadRequest]:
        """Poisson arrivals without end; the same for the same seed on any machine."""
        arrivals, lengths = random.Random(f"{self.name} arrivals {seed}"), random.Random(f"{self.name} lengths {seed}")
        arrival_s = 0.0
        while True:
            input_tokens, output_tokens = self.pair(lengths)
            yield WorkloadRequest(arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=output_tokens)
            arrival_s += arrivals.expovariate(rate_rps)


def independent(inputs: Lengths, outputs: Lengths) -> Callable[[random.Random], tuple[int, int]]:
    """Input and output lengths that know nothing of each other."""
    return lambda rng: (inputs.draw(rng), outputs.draw(rng))


def _within(window: int, inputs: Lengths, outputs: Lengths) -> Callable[[random.Random], tuple[int, int]]:
    """Outputs that end where the model's window does."""

    def pair(rng: random.Random) -> tuple[int, int]:
        input_tokens = inputs.draw(rng)
        return input_tokens, outputs.draw(rng, window - input_tokens)

    return pair


def _uniform(rng: random.Random) -> tuple[int, int]:
    return rng.randint(64, 2048), rng.randint(16, 512)


_ALL = (
    Generator(
        "chat",
        "Conversation: lognormal lengths, input mean 1,000 (log deviation 1), output mean 200 (0.8).",
        6.0,
        independent(lognormal(1000, 1.0, 8192, 8), lognormal(200, 0.8, 2048)),
    ),
    Generator("random", "Uniform lengths: input 64 to 2,048 tokens, output 16 to 512.", 4.0, _uniform),
    Generator(
        "sharegpt-reasoning",
        "SIBYL's ShareGPT on Qwen3-32B: input mean 183, output mean 5,659, 60 % of outputs at the cap of 8,192.",
        0.5,
        independent(Lengths(((1.0, 4.497, 1.2),), 4096), Lengths(((1.0, 7.0942, 1.0),), 8192, capped_ratio=0.5999)),
    ),
    Generator(
        "zeta",
        "SIBYL's Zeta edits: input mean 345, output mean 4,500, 44 % of outputs at the cap of 8,192.",
        0.6,
        independent(Lengths(((1.0, 5.6651, 0.6),), 1700), Lengths(((1.0, 6.9524, 1.0),), 8192, capped_ratio=0.4368)),
    ),
    Generator(
        "alpaca-reasoning",
        "ARES's Alpaca: input mean 11, output mean 8,590, 23 % of outputs end at the 32,700-token window.",
        0.3,
        _within(
            32_700,
            Lengths(((0.5077, 2.3115, 0.1752), (0.4923, 2.324, 0.4486)), 64, 3),
            Lengths(((1.0, 6.3804, 1.3482),), 32_700, capped_ratio=0.2291),
        ),
    ),
)

GENERATORS = MappingProxyType({generator.name: generator for generator in _ALL})
"""Built-in workloads by name."""


def generate(
    name: str,
    *,
    duration_s: float,
    rate_rps: float | None = None,
    rate_scale: float = 1.0,
    seed: int = 0,
    limit: int | None = None,
) -> list[WorkloadRequest]:
    """The requests of `duration_s` seconds; without `rate_rps` at the generator's default rate.

    Raises ValueError for a name that does not exist and for a rate that is not positive.
    """
    if name not in GENERATORS:
        raise ValueError(f"workload: there is no {name!r}; there are {', '.join(GENERATORS)}")
    generator = GENERATORS[name]
    rate = (generator.default_rate_rps if rate_rps is None else rate_rps) * rate_scale
    if not 0 < rate < math.inf:
        raise ValueError(f"rate_rps: must be above 0 and finite, not {rate!r}")
    requests: list[WorkloadRequest] = []
    for request in generator.requests(rate, seed):
        if request.arrival_s >= duration_s or (limit is not None and len(requests) >= limit):
            return requests
        requests.append(request)
    raise AssertionError("a generator never ends")
