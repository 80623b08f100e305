"""Workloads whose requests share prefixes: conversations, and tenants of which one is hot at a time."""

import heapq
import random
from collections.abc import Iterator

from ballast_sim.workloads.lengths import lognormal
from ballast_sim.workloads.request import WorkloadRequest

BLOCK_TOKENS = 64
_OWN_IDS = 4096  # ids set aside for each session or tenant: more blocks than any of their prompts has

TURNS = (2, 6)
MEAN_TURNS = 4
SYSTEM_TOKENS = 512
_MESSAGE = lognormal(200, 0.8, 2048, 8)
_ANSWER = lognormal(250, 0.7, 2048, 8)
_THINK_S = 20.0
_READ_S_PER_TOKEN = 0.03

TENANTS = 16
TENANT_TOKENS = 2048
HOT_PERIOD_S = 60.0
HOT_RATIO = 0.6
_SUFFIX = lognormal(256, 0.8, 2048, 16)
_REPLY = lognormal(150, 0.7, 1024, 4)


def conversations(arrivals: Iterator[float], rng: random.Random) -> Iterator[WorkloadRequest]:
    """Sessions of 2 to 6 turns that start at these times; each turn carries all before it.

    A system prompt of 512 tokens is common to all. The next turn comes an answer's reading time (0.03 s a token) and
    an exponential pause (mean 20 s) after the one before.
    """
    pending: list[tuple[float, int, WorkloadRequest]] = []
    for session, start_s in enumerate(arrivals):
        while pending and pending[0][0] <= start_s:
            yield heapq.heappop(pending)[2]
        for request in _session(session, start_s, rng):
            heapq.heappush(pending, (request.arrival_s, session, request))


def _session(session: int, start_s: float, rng: random.Random) -> Iterator[WorkloadRequest]:
    arrival_s, context = start_s, SYSTEM_TOKENS
    common = SYSTEM_TOKENS // BLOCK_TOKENS
    first = (session + 1) * _OWN_IDS
    for turn in range(rng.randint(*TURNS)):
        input_tokens, output_tokens = context + _MESSAGE.draw(rng), _ANSWER.draw(rng)
        blocks = -(-input_tokens // BLOCK_TOKENS)
        yield WorkloadRequest(
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            hash_ids=(*range(common), *range(first + common, first + blocks)),
            block_size=BLOCK_TOKENS,
            session=session,
            turn=turn,
        )
        context = input_tokens + output_tokens
        arrival_s += output_tokens * _READ_S_PER_TOKEN + rng.expovariate(1 / _THINK_S)


def hotspots(arrivals: Iterator[float], rng: random.Random) -> Iterator[WorkloadRequest]:
    """16 tenants, each with a prompt of 2,048 tokens of its own before every request; popularity 1/rank.

    In every other minute one tenant gets 60 % of the requests: LMetric's section 5.2 describes such hot spots, and
    its traces have none.
    """
    weights = [1 / (rank + 1) for rank in range(TENANTS)]
    for arrival_s in arrivals:
        period = int(arrival_s / HOT_PERIOD_S)
        tenant = rng.choices(range(TENANTS), weights)[0]
        if period % 2 and rng.random() < HOT_RATIO:
            tenant = period // 2 % TENANTS
        first = tenant * _OWN_IDS
        yield WorkloadRequest(
            arrival_s=arrival_s,
            input_tokens=TENANT_TOKENS + _SUFFIX.draw(rng),
            output_tokens=_REPLY.draw(rng),
            hash_ids=tuple(range(first, first + TENANT_TOKENS // BLOCK_TOKENS)),
            block_size=BLOCK_TOKENS,
            client=tenant,
        )
