"""Building policies from plain values: what is wrong is named with its field."""

import pytest

from ballast_core.model import Stage
from ballast_core.policies.registry import PLACEMENTS, PolicyError, build_placement
from ballast_core.view import View
from tests.support.core_builders import endpoint, request


def test_each_registered_type_can_be_built() -> None:
    """The registry's key is the policy's own type name."""
    for type_name in PLACEMENTS:
        assert build_placement(type_name).type == type_name


@pytest.mark.parametrize(
    ("type_name", "parameters", "field", "message"),
    [
        ("least-request", {}, "type", "unknown placement 'least-request'; known: least-requests, round-robin"),
        ("round-robin", {"window": 3}, "parameters.window", "round-robin has no parameter 'window'; it takes none"),
    ],
)
def test_what_is_wrong_is_named(type_name: str, parameters: dict[str, object], field: str, message: str) -> None:
    """The message says what would be right."""
    with pytest.raises(PolicyError) as caught:
        build_placement(type_name, parameters)
    assert caught.value.field == field
    assert str(caught.value) == message


@pytest.mark.parametrize("type_name", sorted(PLACEMENTS))
def test_reordered_candidates_get_reordered_costs(type_name: str) -> None:
    """A placement's contract: the same candidates in another order have the same costs, in that order."""
    import numpy as np

    names = ("d0", "d1", "d2", "d3")
    load = np.array([3, 1, 2, 1])
    policy = build_placement(type_name)

    def costs(order: list[int]) -> list[float]:
        view = View(
            now_s=0.0,
            stage=Stage.DECODE,
            endpoints=tuple(endpoint(names[k]) for k in order),
            requests=load[order],
            running_requests=load[order],
            waiting_requests=load[order],
            tokens=load[order] * 100,
            decoding_tokens=load[order] * 50,
            kv_usage_ratio=load[order] / 10,
            observation_age_s=np.zeros(4),
        )
        return list(policy.costs(view, request()))

    straight = costs([0, 1, 2, 3])
    assert costs([3, 1, 0, 2]) == [straight[k] for k in (3, 1, 0, 2)]
