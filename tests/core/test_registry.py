"""Building policies from plain values: what is wrong is named with its field."""

from typing import Any

import pytest

from ballast_core.policies.placement.composition import MAX_NESTING
from ballast_core.policies.placement.registry import ALL_PLACEMENTS, COMPOSITIONS, PLACEMENTS
from ballast_core.policies.registry import (
    ADMISSION,
    PARTITION,
    PLACEMENT,
    QUEUE_ORDER,
    RESCHEDULING,
    Kind,
    PolicyError,
    build,
    build_placement,
)


def test_each_registered_type_can_be_built() -> None:
    """The registry's key is the policy's own type name."""
    for type_name in PLACEMENTS:
        assert build_placement(type_name).type == type_name


@pytest.mark.parametrize(
    ("type_name", "parameters", "field", "message"),
    [
        ("round-robin", {"window": 3}, "parameters.window", "round-robin has no parameter 'window'; it takes none"),
        (
            "linear-kv",
            {"kv_weight": "much"},
            "parameters.kv_weight",
            "linear-kv: kv_weight must be float, not str",
        ),
        (
            "linear-kv",
            {"kv_weight": 2},
            "parameters.kv_weight",
            "linear-kv: kv_weight: must be from 0 to 1, not 2",
        ),
    ],
)
def test_what_is_wrong_is_named(type_name: str, parameters: dict[str, object], field: str, message: str) -> None:
    """The message says what would be right."""
    with pytest.raises(PolicyError) as caught:
        build_placement(type_name, parameters)
    assert caught.value.field == field
    assert str(caught.value) == message


def test_an_unknown_type_is_answered_with_all_that_exist() -> None:
    """In order, so that the right one is found."""
    with pytest.raises(PolicyError, match="unknown placement 'least-request'; known: ") as caught:
        build_placement("least-request")
    assert str(caught.value).endswith(", ".join(sorted(ALL_PLACEMENTS)))


@pytest.mark.parametrize("type_name", sorted(COMPOSITIONS))
def test_a_composition_asks_for_its_policies(type_name: str) -> None:
    """By its name alone there is none."""
    with pytest.raises(PolicyError, match=rf"{type_name}: \w+ is missing; give the polic") as caught:
        build_placement(type_name)
    assert caught.value.field in ("parameters.parts", "parameters.first")


def nested(depth: int) -> dict[str, object]:
    """So many compositions, one inside of the other."""
    inner: dict[str, object] = {"type": "ils"}
    for _ in range(depth):
        inner = {"type": "product", "parameters": {"parts": [{"type": "ils"}, inner]}}
    return inner


def test_compositions_nest_to_a_bounded_depth() -> None:
    """And one that is deeper is refused where it begins to be, however deep it goes."""

    def build_nested(depth: int) -> None:
        spec = nested(depth)
        assert isinstance(spec["parameters"], dict)
        build_placement(str(spec["type"]), spec["parameters"])

    build_nested(MAX_NESTING)
    for depth in (MAX_NESTING + 1, 200):
        with pytest.raises(PolicyError, match="as deep as they nest; take a plain placement") as caught:
            build_nested(depth)
        assert caught.value.field == "parameters.parts[1]." * MAX_NESTING + "type"


def test_null_stands_for_what_is_left_out() -> None:
    """As everywhere in manifests."""
    assert build_placement("linear-kv", {"kv_weight": None}) == build_placement("linear-kv")


@pytest.mark.parametrize(
    ("kind", "policy", "name", "value"),
    [
        (RESCHEDULING, "ares", "interval_s", 1e-9),
        (RESCHEDULING, "ares", "points", 10**9),
        (RESCHEDULING, "ares", "horizon_s", 1e300),
        (RESCHEDULING, "ares", "max_moves_per_round", 10**6),
        (RESCHEDULING, "ares", "max_moves_under_way", 10**6),
        (PARTITION, "libra", "max_requests", 10**9),
        (PARTITION, "fixed", "margin_tokens", 10**12),
        (PLACEMENT, "libra", "margin_tokens", 10**12),
        (QUEUE_ORDER, "uniboost", "gamma_window", 10**9),
        (QUEUE_ORDER, "uniboost", "bin_tokens", 10**30),
        (QUEUE_ORDER, "sjf", "unknown_output_tokens", 10**400),
        (ADMISSION, "bounded", "max_decode_requests", 10**30),
        (ADMISSION, "bounded", "max_waiting", 10**30),
    ],
)
def test_a_slip_of_the_hand_costs_no_core_and_no_memory(kind: Kind[Any], policy: str, name: str, value: float) -> None:
    """Numbers that no fleet needs are refused by name."""
    with pytest.raises(PolicyError, match=f"{name}: must be from .* to ") as error:
        build(kind, policy, {name: value})
    assert error.value.field == f"parameters.{name}"
