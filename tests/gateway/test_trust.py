"""Whose request it is, and what it may say about itself."""

from __future__ import annotations

import pytest

from ballast_api.gateway_settings import Trust
from ballast_gateway.trust import Trusted


def tenant(trusted: Trusted, **headers: str) -> str:
    return trusted.tenant({name.replace("_", "-"): value for name, value in headers.items()}.get)


def test_tenants_are_api_keys() -> None:
    """Told apart by either header, without keeping the key; who has none is like all others without one."""
    trusted = Trusted(Trust())
    first, second = tenant(trusted, authorization="Bearer sk-1"), tenant(trusted, authorization="Bearer sk-2")
    assert len({first, second, tenant(trusted, x_api_key="sk-3"), ""}) == 4
    assert "sk-1" not in first
    assert tenant(trusted, authorization="Bearer sk-1", x_api_key="sk-9") == first
    assert tenant(trusted, x_tenant="me") == ""


def test_a_trusted_header_names_the_tenant_in_place_of_the_key() -> None:
    """Then keys do not matter: a request without the header is nobody's."""
    trusted = Trusted(Trust(tenant_header="x-tenant"))
    assert tenant(trusted, x_tenant="a", authorization="k1") == tenant(trusted, x_tenant="a", authorization="k2") != ""
    assert tenant(trusted, authorization="k1") == ""


@pytest.mark.parametrize(
    ("header", "of_body", "expected"), [("-3", 5, -3), (None, 5, 5), ("soon", 5, 5), (" +7 ", 0, 7), ("9" * 30, 0, 0)]
)
def test_priorities_count_only_where_they_are_trusted(header: str | None, of_body: int, expected: int) -> None:
    """The header wins over the body; one that is no number is as none."""
    headers = {} if header is None else {"x-vllm-priority": header}
    assert Trusted(Trust(priorities=True)).priority(headers.get, of_body) == expected
    assert Trusted(Trust()).priority(headers.get, of_body) == 0
    assert "priority" in Trusted(Trust()).dropped_fields
    assert "priority" not in Trusted(Trust(priorities=True)).dropped_fields
