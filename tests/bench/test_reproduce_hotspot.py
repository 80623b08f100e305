"""The made hotspots: documents that one endpoint holds when everybody asks, and one prefix that stays hot."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.reproduce.lmetric.runs import HotDocuments, HotPrefix


@pytest.mark.rotating(3)
@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(5, 60))
def test_every_document_is_asked_about_once_before_its_period(seed: int, rate_rps: float) -> None:
    source = HotDocuments(document_tokens=1024, rate_rps=rate_rps, limit=int(150 * rate_rps))
    requests = source.load(seed, 1.0).requests
    assert requests == source.load(seed, 1.0).requests
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    hot = [((request.hash_ids or [0])[0] // 16, request) for request in requests if request.input_tokens == 1024 + 128]
    assert 0.45 < len(hot) / len(requests) < 0.75
    early = Counter(document for document, request in hot if request.arrival_s < document * 60)
    assert early[1] == 1
    assert all(count == 1 for count in early.values())
    assert all(request.arrival_s < (document + 1) * 60 for document, request in hot)
    cold = [request.hash_ids or () for request in requests if request.input_tokens != 1024 + 128]
    assert len({blocks[0] for blocks in cold}) == len(cold)
    assert source.load(seed + 1, 1.0).requests != requests


@settings(max_examples=10)
@given(st.integers(0, 1000), st.floats(10, 40))
def test_one_prefix_is_asked_for_once_and_then_by_a_fifth(seed: int, rate_rps: float) -> None:
    source = HotPrefix(prefix_tokens=1024, rate_rps=rate_rps, limit=int(120 * rate_rps))
    requests = source.load(seed, 1.0).requests
    assert requests == source.load(seed, 1.0).requests
    hot = [request for request in requests if request.input_tokens == 1024 + 32]
    assert {(request.hash_ids or ())[0] for request in hot} == {0}
    assert hot[0] is requests[0]
    assert all(request.arrival_s >= 30 for request in hot[1:])
    late = [request for request in requests if request.arrival_s >= 30]
    assert 0.12 < (len(hot) - 1) / len(late) < 0.28
    cold = [request.hash_ids or () for request in requests if request.input_tokens != 1024 + 32]
    assert len({blocks[0] for blocks in cold}) == len(cold)
    assert 0 not in {blocks[0] for blocks in cold}
