"""Stand-ins for LMetric's Agent (Qwen) and Coder traces, made from what is known of them.

The paper shows its traces in a plot (figure 5) and prints no moments. The traces are public, qwen-bailian-usagetraces,
files `qwen_traceB` (Agent; some sections call it API) and `qwen_coder`, but not at hand. "Theirs" are counts that
others published of those files, "ours" those of as many requests of a generator (Agent: of 40,000):

| | Agent, theirs | ours | Coder, theirs | ours |
| --- | --- | --- | --- | --- |
| requests/s, over two hours | 24.0 | any | 5.97 | 5.94 |
| input: mean | 915 | 908 | 5748 | 5614 |
| input: P50, P95, P99 | 574, 2491, 6294 | 670, 2409, 5174 | 4540, 13406, 14406 | 4720, 12868, 14500 |
| output: mean, P50, P99 | 92, 39, 1006 | 92, 39, 806 | 808, 469, 5835 | 809, 463, 5375 |
| input that an unbounded cache hits | 54 % | 53 % | 66 % | 65 % |
| of that, last used by the same session | 0 % | 0 % | 40 % | 35 % |
| requests by turn: 1, 2 | all 1 | all 1 | 26406, 6693 | 26470, 6658 |
| 3-5, 6-10, later | - | - | 6906, 2236, 770 | 7023, 2170, 690 |
| seconds from turn to turn: P50, P90 | - | - | 118, 942 | as theirs |

Guesses: that arrivals are Poisson; how many applications there are, how popular each is and how long its prompt is
(chosen so that the hits come out); that the sessions of Coder are long where their turns are short; that an input
grows by the answer and a message a turn, and that a session ends before it would pass the longest.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ballast_sim.simulation.inputs.source import Load, WorkloadSource
from ballast_sim.workloads import WorkloadRequest, scale_arrivals
from ballast_sim.workloads.lengths import Lengths, lognormal

CODER_RPS = 5.97
BLOCK_TOKENS = 64
_OWN_IDS = 4096
"""Set aside for each application and session: more blocks than any prompt has."""


@dataclass(frozen=True, slots=True)
class Applications:
    """Prompts that requests begin with: popularity 1 / rank, lengths the same for every seed."""

    count: int
    lengths: Lengths

    @property
    def tokens(self) -> list[int]:
        """By rank; whole blocks."""
        rng = random.Random("applications")
        drawn = (self.lengths.draw(rng) / BLOCK_TOKENS for _ in range(self.count))
        return [BLOCK_TOKENS * max(1, round(blocks)) for blocks in drawn]

    @property
    def weights(self) -> list[float]:
        """Popularity up to each rank."""
        return list(itertools.accumulate(1 / (rank + 1) for rank in range(self.count)))


AGENT_APPLICATIONS = Applications(300, lognormal(560, 1.2, 4096))
AGENT_OWN = lognormal(440, 1.5, 12_000)
AGENT_OUTPUT = Lengths(((1.0, 3.664, 1.31),), 8192)

CODER_APPLICATIONS = Applications(30, lognormal(2480, 0.5, 6000))
CODER_OWN = lognormal(3050, 1.25, 14_500, 16)
CODER_MESSAGE = lognormal(150, 1.0, 8192, 8)
CODER_OUTPUT = Lengths(((1.0, 6.18, 0.6),), 16_384)
CODER_TALKATIVE = 0.9
"""Deviation of the logarithm of a session's factor on both: long sessions have short turns, or they would not fit."""
CODER_LONGEST = 14_500
CODER_GOES_ON = ((1, 0.285), (4, 0.62), (9, 0.79), (10**9, 0.91))
"""Turns up to which another one follows with which probability: gives the turns in the table."""
CODER_FIRST_RATIO = 0.614
"""Of requests, that are a first turn."""
CODER_PAUSE = (4.768, 1.62)
"""Logarithm of the seconds from a turn to the next: mean, deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent(WorkloadSource):
    """Calls of an API, every one a session of its own. Takes `rate_rps` and `limit`; the rest of a source is unused."""

    @property
    def name(self) -> str:
        """See `WorkloadSource`."""
        return "agent (Qwen)"

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource`."""
        assert self.rate_rps is not None
        assert self.limit is not None
        rng = random.Random(f"agent {seed}")
        tokens, weights = AGENT_APPLICATIONS.tokens, AGENT_APPLICATIONS.weights
        requests, at_s = [], 0.0
        for number in range(self.limit):
            at_s += rng.expovariate(self.rate_rps * rate_scale)
            rank = rng.choices(range(len(tokens)), cum_weights=weights)[0]
            input_tokens = tokens[rank] + AGENT_OWN.draw(rng)
            requests.append(
                WorkloadRequest(
                    arrival_s=at_s,
                    input_tokens=input_tokens,
                    output_tokens=AGENT_OUTPUT.draw(rng),
                    hash_ids=_ids(AGENT_APPLICATIONS, rank, number, tokens[rank], input_tokens),
                    block_size=BLOCK_TOKENS,
                )
            )
        return Load(tuple(requests), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Coder(WorkloadSource):
    """Sessions of a coding assistant that carry their history. Takes `rate_rps` and `limit`, the rest is unused.

    All of a session, pauses included, is faster by as much as the rate is above the trace's, as in a trace whose
    stamps are scaled. The first `skipped` requests are left out: before, there are fewer late turns than later on.
    """

    skipped: int = 12_000

    @property
    def name(self) -> str:
        """See `WorkloadSource`."""
        return "coder"

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource`."""
        assert self.rate_rps is not None
        assert self.limit is not None
        rng = random.Random(f"coder {seed}")
        part = list(itertools.islice(_coder(rng), self.skipped, self.skipped + self.limit))
        start_s = part[0].arrival_s
        moved = [replace(request, arrival_s=request.arrival_s - start_s) for request in part]
        return Load(tuple(scale_arrivals(moved, self.rate_rps * rate_scale / CODER_RPS)), {})


def _coder(rng: random.Random) -> Iterator[WorkloadRequest]:
    """Without end, at the trace's own rate."""
    tokens, weights = CODER_APPLICATIONS.tokens, CODER_APPLICATIONS.weights
    pending: list[tuple[float, int, int, WorkloadRequest]] = []
    start_s = 0.0
    for session in itertools.count():
        start_s += rng.expovariate(CODER_RPS * CODER_FIRST_RATIO)
        while pending and pending[0][0] <= start_s:
            yield heapq.heappop(pending)[-1]
        rank = rng.choices(range(len(tokens)), cum_weights=weights)[0]
        for request in _coder_session(session, rank, tokens[rank], start_s, rng):
            heapq.heappush(pending, (request.arrival_s, session, request.turn or 0, request))


def _coder_session(
    session: int, rank: int, common: int, start_s: float, rng: random.Random
) -> Iterator[WorkloadRequest]:
    input_tokens, arrival_s = min(CODER_LONGEST, common + CODER_OWN.draw(rng)), start_s
    factor = rng.lognormvariate(0, CODER_TALKATIVE)
    for turn in itertools.count():
        output_tokens = max(1, round(factor * CODER_OUTPUT.draw(rng)))
        yield WorkloadRequest(
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            hash_ids=_ids(CODER_APPLICATIONS, rank, session, common, input_tokens),
            block_size=BLOCK_TOKENS,
            session=session,
            turn=turn,
        )
        input_tokens += output_tokens + max(1, round(factor * CODER_MESSAGE.draw(rng)))
        arrival_s += rng.lognormvariate(*CODER_PAUSE)
        goes_on = next(ratio for last, ratio in CODER_GOES_ON if turn + 1 <= last)
        if input_tokens > CODER_LONGEST or rng.random() >= goes_on:
            return


def _ids(of: Applications, rank: int, session: int, common: int, input_tokens: int) -> tuple[int, ...]:
    """Blocks of the application's prompt of `common` tokens, then the session's own."""
    shared, blocks = common // BLOCK_TOKENS, -(-input_tokens // BLOCK_TOKENS)
    application, own = rank * _OWN_IDS, (of.count + session) * _OWN_IDS
    return (*range(application, application + shared), *range(own, own + blocks - shared))
