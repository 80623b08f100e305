"""What a tenant may use, where a gateway hears of requests that have run at others for a while."""

from __future__ import annotations

import pytest

from ballast_api.gateway_files import TenantEntry
from ballast_gateway.tenants import Tenant, Usage
from ballast_gateway.view import book as books
from tests.gateway.test_view_book import observer, row, snapshot


@pytest.mark.parametrize(("age_s", "left"), [(1.0, -39_000), (books.PAID_S, 1000)])
def test_a_gateway_that_starts_counts_the_last_minutes_prompts_of_what_runs(age_s: float, left: int) -> None:
    """Those before were paid at the others, which let the tenant's requests in."""
    tenant = Tenant(TenantEntry(name="t", tokens_per_minute=1000), lambda: 0.0, Usage())
    book, _ = observer(share=tenant)
    rows = [
        row("gw-b", f"r{k}", tenant="t", prompt_tokens=1000, phase="decoding", generated_tokens=9, age_s=age_s)
        for k in range(40)
    ]
    book.take("gw-b", snapshot(*rows, holds="gateway"), 0.0)
    report = tenant.report()
    assert report["in_flight"]["elsewhere"] == 40
    assert report["tokens"]["left"] == left
    assert (tenant.begin(10) is None) is (left > 0)
