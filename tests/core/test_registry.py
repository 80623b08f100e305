"""Building policies from plain values: what is wrong is named with its field."""

import pytest

from ballast_core.policies.registry import PLACEMENTS, PolicyError, build_placement


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
            "parameters",
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
    assert str(caught.value).endswith(", ".join(sorted(PLACEMENTS)))
