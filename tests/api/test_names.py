"""Labels and child names: what operator and gateway must spell alike."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_api import names
from ballast_api.common import DNS_LABEL, DNS_LABEL_STARTING_WITH_LETTER
from ballast_core.model import Role

SERVING_POOLS = st.from_regex(DNS_LABEL_STARTING_WITH_LETTER, fullmatch=True).filter(lambda name: len(name) <= 40)
POOLS = st.from_regex(DNS_LABEL, fullmatch=True).filter(lambda name: len(name) <= 20)
SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""RFC 1035, which Services of older clusters ask for."""


@given(serving_pool=SERVING_POOLS, pool=POOLS)
def test_children_of_valid_names_have_names_that_services_may_have(serving_pool: str, pool: str) -> None:
    """Whatever the API accepts, the operator can create."""
    for name in (names.pool_object_name(serving_pool, pool), names.gateway_object_name(serving_pool)):
        assert SERVICE_NAME.fullmatch(name)
        assert len(name) <= 63


def test_the_longest_names_leave_room_for_a_suffix() -> None:
    """`-gateway-admin` and its like."""
    longest = "a" * names.MAX_SERVING_POOL_NAME
    assert len(names.child_name(longest, "p" * names.MAX_POOL_NAME)) == 61
    with pytest.raises(ValueError, match="Kubernetes allows 63"):
        names.child_name(longest, "p" * 23)


@pytest.mark.parametrize(
    ("role", "core", "llmd"),
    [
        ("Prefill", Role.PREFILL, "prefill"),
        ("Decode", Role.DECODE, "decode"),
        ("Flexible", Role.FLEXIBLE, "prefill-decode"),
    ],
)
def test_a_role_has_one_word_for_each_reader(role: names.RoleName, core: Role, llmd: str) -> None:
    """The API's, the core's (our label's value) and llm-d's."""
    assert names.core_role(role) is core
    assert names.llmd_role(core) == llmd


def test_selectors_select_their_own_pods_and_no_others() -> None:
    """By label, as Kubernetes does it; the role is not among them, it may change at run time."""

    def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
        return selector.items() <= labels.items()

    prefill = names.engine_labels("a", "p", Role.PREFILL)
    decode = names.engine_labels("a", "d", Role.DECODE)
    gateway = names.common_labels("a", "gateway")
    selector = names.engine_match_labels("a", "p")
    assert [selects(selector, labels) for labels in (prefill, decode, gateway)] == [True, False, False]
    assert selects(selector, names.engine_labels("a", "p", Role.DECODE))
    assert [selects(names.gateway_match_labels("a"), labels) for labels in (prefill, gateway)] == [False, True]
    watched = dict(term.split("=") for term in names.endpoint_selector("a").split(","))
    assert [selects(watched, labels) for labels in (prefill, decode, gateway)] == [True, True, False]
    assert not selects(watched, names.engine_labels("b", "p", Role.PREFILL))
