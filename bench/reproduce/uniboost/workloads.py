"""Workloads of UniBoost's that no generator has: reasoning alone, and one instance's share of a cluster's arrivals."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ballast_sim.simulation.inputs.source import Load, WorkloadSource, trace_requests
from ballast_sim.workloads import GENERATORS, WorkloadRequest
from ballast_sim.workloads.lengths import lognormal

PROMPTS = lognormal(250, 0.8, 4096, 16)
ANSWERS = lognormal(5000, 0.5, 16_384, 256)
"""Of s1k, as in generators `mix-1` and `mix-2`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning(WorkloadSource):
    """s1k alone, Poisson arrivals. Takes `rate_rps` and `limit`; the rest of a source is unused."""

    @property
    def name(self) -> str:
        """See `WorkloadSource`."""
        return "reasoning (s1k)"

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource`."""
        assert self.rate_rps is not None
        assert self.limit is not None
        rng, at_s, requests = random.Random(f"s1k {seed}"), 0.0, []
        for _ in range(self.limit):
            at_s += rng.expovariate(self.rate_rps * rate_scale)
            requests.append(
                WorkloadRequest(arrival_s=at_s, input_tokens=PROMPTS.draw(rng), output_tokens=ANSWERS.draw(rng))
            )
        return Load(tuple(requests), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(WorkloadSource):
    """What a random dispatcher sends to one of `instances`, when a trace is replayed at the rate of them all.

    Takes `trace` (its arrivals alone), `workload` (a generator's lengths), `rate_rps` of the one instance and `limit`;
    the rest of a source is unused. The trace begins anew where it ends, and at another request for each seed. The
    requests of a seed are the same for any number of instances, and so is their mean rate, exactly: only when they
    arrive is not.
    """

    instances: int

    @property
    def name(self) -> str:
        """See `WorkloadSource`."""
        return f"{self.workload}, one of {self.instances}"

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource`. Raises TraceError."""
        assert self.rate_rps is not None
        assert self.limit is not None
        arrivals = list(islice(self._chosen(seed), self.limit))
        slower = (self.limit - 1) / (self.rate_rps * rate_scale * arrivals[-1])
        lengths = islice(GENERATORS[self.workload].requests(1.0, seed), self.limit)
        requests = (replace(each, arrival_s=at_s * slower) for each, at_s in zip(lengths, arrivals, strict=True))
        return Load(tuple(requests), {})

    def _chosen(self, seed: int) -> Iterator[float]:
        """Seconds of the trace from the first request that is chosen; without end."""
        assert self.trace is not None
        stamps = [request.arrival_s for request in trace_requests(self.trace)]
        period_s = (stamps[-1] - stamps[0]) * len(stamps) / (len(stamps) - 1)
        rng = random.Random(f"share of {self.instances} {seed}")
        first = place = rng.randrange(len(stamps))
        while True:
            rounds, index = divmod(place, len(stamps))
            yield stamps[index] + rounds * period_s - stamps[first]
            place += _until_chosen(rng, self.instances)


def _until_chosen(rng: random.Random, instances: int) -> int:
    """How many draws it takes until one of `instances` is drawn, each being as likely."""
    return 1 if instances == 1 else 1 + int(math.log(1 - rng.random()) / math.log1p(-1 / instances))
