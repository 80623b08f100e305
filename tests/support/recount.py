"""The ledger's sums, counted anew from its entries."""

from __future__ import annotations

import numpy as np

from ballast_core.model import Stage
from ballast_core.state.ledger import Entry, Ledger, Phase


def check_books(ledger: Ledger) -> None:
    """Each sum by endpoint is what the requests and their reservations add up to, and each has its row of flights."""
    slots = len(ledger.foreign)
    requests = {stage: np.zeros(slots, np.int64) for stage in Stage}
    tokens = {stage: np.zeros(slots, np.int64) for stage in Stage}
    uncached, pairs = np.zeros(slots, np.int64), np.zeros(slots)
    decoding, decoding_tokens = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    rows: list[int] = []
    for entry in ledger:
        if entry.decode_slot is None:
            assert entry.phase is Phase.HELD
            assert (entry.prefill_slot, entry.reservation, entry.row) == (None, None, -1)
            continue
        assert entry.phase is not Phase.HELD
        held_tokens = entry.request.prompt_tokens + entry.generated_tokens
        requests[Stage.DECODE][entry.decode_slot] += 1
        tokens[Stage.DECODE][entry.decode_slot] += held_tokens
        if entry.phase is Phase.DECODING:
            decoding[entry.decode_slot] += 1
            decoding_tokens[entry.decode_slot] += held_tokens
        else:
            first, plan = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot, entry.prefill
            assert 0 <= plan.cached_tokens <= plan.tokens <= entry.request.prompt_tokens
            computed = plan.tokens - plan.cached_tokens
            requests[Stage.PREFILL][first] += 1
            tokens[Stage.PREFILL][first] += plan.tokens
            uncached[first] += computed
            pairs[first] += computed * plan.cached_tokens + computed**2 / 2
        rows.append(_checked_row(ledger, entry))
        coming = entry.reservation
        if coming is not None:
            assert entry.phase is Phase.DECODING
            assert coming.decode_slot not in {None, entry.decode_slot}
            requests[Stage.DECODE][coming.decode_slot] += 1
            tokens[Stage.DECODE][coming.decode_slot] += coming.request.prompt_tokens
            rows.append(_checked_row(ledger, coming))
    assert sorted(rows) == list(range(ledger.flights.count))
    for stage in Stage:
        np.testing.assert_array_equal(ledger.requests[stage], requests[stage])
        np.testing.assert_array_equal(ledger.tokens[stage], tokens[stage])
    np.testing.assert_array_equal(ledger.uncached_tokens, uncached)
    np.testing.assert_array_equal(ledger.uncached_pairs, pairs)
    np.testing.assert_array_equal(ledger.decoding_requests, decoding)
    np.testing.assert_array_equal(ledger.decoding_tokens, decoding_tokens)
    assert (ledger.foreign >= 0).all()


def _checked_row(ledger: Ledger, entry: Entry) -> int:
    flights, row = ledger.flights, entry.row
    assert ledger.entry_of_row(row) is entry
    assert flights.slot[row] == entry.decode_slot
    assert flights.prompt_tokens[row] == entry.request.prompt_tokens
    assert flights.generated_tokens[row] == entry.generated_tokens
    assert flights.decoding[row] == (entry.phase is Phase.DECODING)
    return row


def on_engine(ledger: Ledger, slot: int) -> int:
    """Our requests that the endpoint's own metrics should show by now: those that it prefills, and its decodes."""
    count = 0
    for entry in ledger:
        if entry.phase is Phase.PREFILLING:
            count += slot == (entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot)
        elif entry.phase is Phase.DECODING:
            count += slot == entry.decode_slot
    return count
