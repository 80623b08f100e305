"""Ids of requests that bring none."""

import re

from ballast_gateway.request_ids import request_ids


def test_each_is_new_and_of_128_bits() -> None:
    """Also beyond what is drawn at once, and from two sources."""
    one, other = request_ids(), request_ids()
    found = [give() for _ in range(1000) for give in (one, other)]
    assert len(set(found)) == 2000
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in found)
