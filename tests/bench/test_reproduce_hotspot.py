"""The made hotspot: a document that one endpoint holds when everybody asks about it."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.reproduce.lmetric_runs import HotDocuments


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
