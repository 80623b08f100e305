"""Hotspots that no built-in workload has: documents that change, and one prefix that keeps being asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ballast_sim.simulation.inputs.source import Load, WorkloadSource
from ballast_sim.workloads import WorkloadRequest

BLOCK_TOKENS = 64
QUESTION_TOKENS = 128
OTHER_TOKENS = 2048
ANSWER_TOKENS = 150
_OWN_IDS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HotDocuments(WorkloadSource):
    """Poisson arrivals; `hot_ratio` of them ask about the document of the minute, all others share nothing.

    Every document is asked about once, half a period before its own, so that one endpoint holds it when all come: a
    document that no endpoint holds is prefilled by several at once, and is no hotspot then. Takes `rate_rps` and
    `limit`; the rest of a source is unused. Answers are exponential, mean 150 tokens.
    """

    document_tokens: int
    hot_ratio: float = 0.6
    period_s: float = 60.0

    @property
    def name(self) -> str:
        """See `WorkloadSource`."""
        return f"hot documents of {self.document_tokens} tokens"

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource`."""
        assert self.rate_rps is not None
        assert self.limit is not None
        rng = random.Random(f"hot documents {seed}")
        blocks = self.document_tokens // BLOCK_TOKENS
        requests, at_s, announced = [], 0.0, 0
        for number in range(self.limit):
            at_s += rng.expovariate(self.rate_rps * rate_scale)
            hot = rng.random() < self.hot_ratio
            document = int(at_s / self.period_s)
            if hot and announced <= document and at_s > (document + 0.5) * self.period_s:
                document = announced = document + 1
            first = document * blocks if hot else _OWN_IDS * (number + 1)
            tokens = self.document_tokens if hot else OTHER_TOKENS
            requests.append(
                WorkloadRequest(
                    arrival_s=at_s,
                    input_tokens=tokens + QUESTION_TOKENS,
                    output_tokens=1 + int(rng.expovariate(1 / ANSWER_TOKENS)),
                    hash_ids=tuple(range(first, first + tokens // BLOCK_TOKENS)),
                    block_size=BLOCK_TOKENS,
                )
            )
        return Load(tuple(requests), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPrefix(WorkloadSource):
    """Poisson arrivals; from `begins_s` on, `hot_ratio` of them have one long prefix and a short question of their own.

    This is the case of section 5.2: on the endpoints that hold the prefix next to nothing is left to prefill, so that
    no batch size makes up for it. The very first request has the prefix, too: one endpoint holds it when the others
    come. All others share nothing. Takes `rate_rps` and `limit`; the rest of a source is unused. Hot answers are
    exponential, mean `answer_tokens`, those of others as above.
    """

    prefix_tokens: int
    hot_ratio: float = 0.2
    question_tokens: int = 32
    answer_tokens: int = 300
    begins_s: float = 30.0

    @property
    def name(self) -> str:
        """See `WorkloadSource`."""
        return f"hot prefix of {self.prefix_tokens} tokens"

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource`."""
        assert self.rate_rps is not None
        assert self.limit is not None
        rng = random.Random(f"hot prefix {seed}")
        requests, at_s = [], 0.0
        for number in range(self.limit):
            at_s += rng.expovariate(self.rate_rps * rate_scale)
            hot = (rng.random() < self.hot_ratio and at_s >= self.begins_s) or not number
            first = 0 if hot else _OWN_IDS * (number + 1)
            tokens = self.prefix_tokens if hot else OTHER_TOKENS
            answer = rng.expovariate(1 / (self.answer_tokens if hot else ANSWER_TOKENS))
            requests.append(
                WorkloadRequest(
                    arrival_s=at_s,
                    input_tokens=tokens + (self.question_tokens if hot else QUESTION_TOKENS),
                    output_tokens=1 + int(answer),
                    hash_ids=tuple(range(first, first + tokens // BLOCK_TOKENS)),
                    block_size=BLOCK_TOKENS,
                )
            )
        return Load(tuple(requests), {})
