"""LMetric's Agent and Coder: lengths, turns and hits are about those of the traces."""

import statistics
from collections import Counter
from collections.abc import Sequence

from ballast_sim.workloads import WorkloadRequest
from bench.reproduce.lmetric.workloads import BLOCK_TOKENS, CODER_LONGEST, Agent, Coder


def hit_ratio(requests: Sequence[WorkloadRequest]) -> float:
    """Of input tokens, in an unbounded cache."""
    seen: set[int] = set()
    hits = 0
    for request in requests:
        blocks = request.hash_ids or ()
        known = next((index for index, block in enumerate(blocks) if block not in seen), len(blocks))
        hits += min(known * BLOCK_TOKENS, request.input_tokens)
        seen.update(blocks)
    return hits / sum(request.input_tokens for request in requests)


def check_form(requests: Sequence[WorkloadRequest]) -> None:
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    for request in requests:
        assert len(request.hash_ids or ()) == -(-request.input_tokens // BLOCK_TOKENS)
        assert request.output_tokens >= 1


def test_agent_calls_share_what_their_applications_have() -> None:
    source = Agent(rate_rps=90.0, limit=6000)
    requests = source.load(0, 1.0).requests
    check_form(requests)
    assert requests == source.load(0, 1.0).requests != source.load(1, 1.0).requests
    assert 780 < statistics.fmean(request.input_tokens for request in requests) < 1050
    assert 80 < statistics.fmean(request.output_tokens for request in requests) < 105
    assert 0.44 < hit_ratio(requests) < 0.6
    assert abs(len(requests) / requests[-1].arrival_s - 90) < 5
    twice = source.load(0, 2.0).requests
    assert abs(twice[-1].arrival_s - requests[-1].arrival_s / 2) < 0.01


def test_coder_sessions_carry_their_history() -> None:
    requests = Coder(rate_rps=12.0, limit=6000, skipped=2000).load(0, 1.0).requests
    check_form(requests)
    assert requests[0].arrival_s == 0
    assert 4900 < statistics.fmean(request.input_tokens for request in requests) < 6500
    assert 690 < statistics.fmean(request.output_tokens for request in requests) < 930
    assert max(request.input_tokens for request in requests) <= CODER_LONGEST
    turns = Counter(request.turn for request in requests)
    assert 0.53 < turns[0] / len(requests) < 0.7
    last: dict[int | None, WorkloadRequest] = {}
    for request in requests:
        before = last.get(request.session)
        if before is not None:
            whole = before.input_tokens // BLOCK_TOKENS
            assert (request.turn or 0) > (before.turn or 0)
            assert request.input_tokens > before.input_tokens + before.output_tokens
            assert (request.hash_ids or ())[:whole] == (before.hash_ids or ())[:whole]
        last[request.session] = request


def test_coder_is_as_its_trace_from_the_start() -> None:
    requests = Coder(rate_rps=5.97, limit=20_000, skipped=0).load(0, 1.0).requests
    assert 0.6 < hit_ratio(requests) < 0.7
    turns = Counter(request.turn for request in requests)
    assert 0.2 < turns[1] / turns[0] < 0.3
