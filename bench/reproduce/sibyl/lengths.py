"""Uniform lengths that no built-in workload has: those of SIBYL's appendix G."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from ballast_sim.simulation.inputs.source import Load, WorkloadSource
from ballast_sim.workloads.arrivals import POISSON
from ballast_sim.workloads.generators import Generator, single
from ballast_sim.workloads.lengths import uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLengths(WorkloadSource):
    """Lengths uniform from 1 to the longest, inputs and outputs independent.

    Takes `rate_rps`, `limit` and `arrivals`; the rest of a source is unused.
    """

    longest_input_tokens: int
    longest_output_tokens: int

    @property
    def name(self) -> str:
        """See `WorkloadSource`."""
        return f"uniform lengths to {self.longest_input_tokens} and {self.longest_output_tokens} tokens"

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource`."""
        assert self.rate_rps is not None
        assert self.limit is not None
        pair = uniform((1, self.longest_input_tokens), (1, self.longest_output_tokens))
        generator = Generator(self.name, "", self.rate_rps, single(pair))
        drawn = generator.requests(self.rate_rps * rate_scale, seed, self.arrivals or POISSON)
        return Load(tuple(islice(drawn, self.limit)), {})
