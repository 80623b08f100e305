"""Built-in workloads: complete without any data file. Arrivals are Poisson unless another process is asked for.

The parameters of `sharegpt-reasoning`, `zeta` and `alpaca-reasoning` were fitted to the means, deviations and
percentiles that SIBYL (ShareGPT and Zeta on Qwen3-32B) and ARES (Alpaca) publish. Libra (section 6.1) and UniBoost
(section 4.1) name their data sets and mixes but publish few figures: where means and medians of the data sets are
public the lognormals below have them, and `docs/simulate/traffic.md` names the spreads that are ours.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from ballast_sim.naming import known_names
from ballast_sim.settings import SettingError
from ballast_sim.workloads.arrivals import POISSON, ArrivalProcess, check_count
from ballast_sim.workloads.lengths import Lengths, Pair, independent, lognormal, mixed, uniform, within
from ballast_sim.workloads.prefixes import MEAN_TURNS, conversations, hotspots
from ballast_sim.workloads.request import WorkloadRequest

Make: TypeAlias = Callable[[Iterator[float], random.Random], Iterator[WorkloadRequest]]
"""Requests from arrival times and a source of lengths."""


@dataclass(frozen=True, slots=True)
class Generator:
    """One built-in workload."""

    name: str
    explanation: str
    default_rate_rps: float
    make: Make
    requests_per_arrival: float = 1.0
    """Above 1 where sessions arrive."""

    def requests(self, rate_rps: float, seed: int, process: ArrivalProcess = POISSON) -> Iterator[WorkloadRequest]:
        """Requests without end; the same for the same seed on any machine."""
        arrivals, lengths = random.Random(f"{self.name} arrivals {seed}"), random.Random(f"{self.name} lengths {seed}")
        return self.make(process.times(rate_rps / self.requests_per_arrival, arrivals), lengths)


def single(pair: Pair) -> Make:
    """Requests that have nothing to do with each other."""

    def make(arrivals: Iterator[float], rng: random.Random) -> Iterator[WorkloadRequest]:
        for arrival_s in arrivals:
            input_tokens, output_tokens = pair(rng)
            yield WorkloadRequest(arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=output_tokens)

    return make


_AZURE_CONVERSATION = independent(lognormal(1246, 0.81, 14_050, 2), lognormal(204, 0.71, 1000, 7))
_S1K = independent(lognormal(250, 0.8, 4096, 16), lognormal(5000, 0.5, 16_384, 256))

_ALL = (
    Generator(
        "chat",
        "Conversation: lognormal lengths, input mean 1,000 (log deviation 1), output mean 200 (0.8).",
        6.0,
        single(independent(lognormal(1000, 1.0, 8192, 8), lognormal(200, 0.8, 2048))),
    ),
    Generator(
        "random",
        "Uniform lengths: input 64 to 2,048 tokens, output 16 to 512.",
        4.0,
        single(uniform((64, 2048), (16, 512))),
    ),
    Generator(
        "sharegpt-reasoning",
        "SIBYL's ShareGPT on Qwen3-32B: input mean 183, output mean 5,659, 60 % of outputs at the cap of 8,192.",
        0.5,
        single(
            independent(Lengths(((1.0, 4.497, 1.2),), 4096), Lengths(((1.0, 7.0942, 1.0),), 8192, capped_ratio=0.5999))
        ),
    ),
    Generator(
        "zeta",
        "SIBYL's Zeta edits: input mean 345, output mean 4,500, 44 % of outputs at the cap of 8,192.",
        0.6,
        single(
            independent(Lengths(((1.0, 5.6651, 0.6),), 1700), Lengths(((1.0, 6.9524, 1.0),), 8192, capped_ratio=0.4368))
        ),
    ),
    Generator(
        "sibyl-random",
        "SIBYL's random lengths: input 1 to 512 tokens, output 1 to 8,192.",
        0.6,
        single(uniform((1, 512), (1, 8192))),
    ),
    Generator(
        "alpaca-reasoning",
        "ARES's Alpaca: input mean 11, output mean 8,590, 23 % of outputs end at the 32,700-token window.",
        0.3,
        single(
            within(
                32_700,
                Lengths(((0.5077, 2.3115, 0.1752), (0.4923, 2.324, 0.4486)), 64, 3),
                Lengths(((1.0, 6.3804, 1.3482),), 32_700, capped_ratio=0.2291),
            )
        ),
    ),
    Generator(
        "sharegpt-32k",
        "ARES's ShareGPT: input mean 305 (median 36), output mean 7,540 (median 1,540), 17 % end at the 32,700 window.",
        0.3,
        single(
            within(
                32_700,
                Lengths(((0.72, 3.0910, 0.8), (0.28, 6.4770, 0.95)), 8192),
                Lengths(((1.0, 7.018, 1.234),), 32_700, capped_ratio=0.17),
            )
        ),
    ),
    Generator(
        "multi-turn",
        "Conversations of 2 to 6 turns that carry their history; input mean 1,500, output mean 250, shared prefixes.",
        4.0,
        conversations,
        MEAN_TURNS,
    ),
    Generator(
        "hotspot-prefix",
        "16 tenants with prompts of 2,048 tokens of their own; every other minute one of them gets 60 % of requests.",
        4.0,
        hotspots,
    ),
    Generator(
        "libra-code",
        "Libra's Azure Code, prefill-heavy: input mean 2,048 (median 1,500), output mean 28 (median 13).",
        3.0,
        single(independent(lognormal(2048, 0.79, 8192, 3), lognormal(28, 1.24, 2048))),
    ),
    Generator(
        "libra-chat",
        "Libra's BurstGPT, balanced: input mean 621, output mean 126 tokens.",
        8.0,
        single(independent(lognormal(621, 1.0, 8192, 4), lognormal(126, 1.0, 2048))),
    ),
    Generator(
        "libra-summary",
        "Libra's arXiv summarization, long prompts: input mean 2,588, output mean 291 (median 167).",
        2.0,
        single(independent(lognormal(2588, 0.35, 4096, 64), lognormal(291, 1.05, 4056, 5))),
    ),
    Generator(
        "libra-reasoning",
        "Libra's Mini Reasoning, decode-heavy: input mean 219, output mean 1,467 tokens.",
        2.0,
        single(independent(lognormal(219, 0.6, 2048, 16), lognormal(1467, 0.6, 8192, 64))),
    ),
    Generator(
        "mix-1",
        "UniBoost's mix-1: 20 % reasoning (s1k; output mean 5,000), the rest Azure conversations.",
        2.0,
        single(mixed(0.2, _S1K, _AZURE_CONVERSATION)),
    ),
    Generator(
        "mix-2",
        "UniBoost's mix-2: 70 % reasoning (s1k; output mean 5,000), the rest Azure conversations.",
        1.0,
        single(mixed(0.7, _S1K, _AZURE_CONVERSATION)),
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
    process: ArrivalProcess = POISSON,
) -> list[WorkloadRequest]:
    """The requests of `duration_s` seconds; without `rate_rps` at the generator's default rate.

    Raises ValueError for a name that does not exist, for a rate that is not positive, and for more requests than
    memory holds.
    """
    if name not in GENERATORS:
        raise SettingError(
            "workload", f"unknown workload {name!r}; " + known_names(name, GENERATORS, "ballast workloads")
        )
    generator = GENERATORS[name]
    if limit is None:
        check_count(
            process,
            rate_rps=rate_rps,
            default_rps=generator.default_rate_rps,
            rate_scale=rate_scale,
            duration_s=duration_s,
        )
    rate = (generator.default_rate_rps if rate_rps is None else rate_rps) * rate_scale
    if not 0 < rate < math.inf:
        raise SettingError("rate_rps", f"must be above 0 and finite, not {rate!r}")
    requests: list[WorkloadRequest] = []
    for request in generator.requests(rate, seed, process):
        if request.arrival_s >= duration_s or (limit is not None and len(requests) >= limit):
            return requests
        requests.append(request)
    raise AssertionError("a generator never ends")
