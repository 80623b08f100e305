"""A name that does not exist is answered with the nearest ones, and with the command that lists all."""

import pytest

from ballast_sim.naming import known_names
from ballast_sim.simulation.policies.choice import PolicyChoiceError, parse_policies

MANY = [f"policy-{letter}" for letter in "abcdefghijklmnop"]


def test_many_names_are_counted_not_listed() -> None:
    """At most three are suggested."""
    answer = known_names("policy-", MANY, "ballast policies")
    assert answer.endswith("? 16 are known, see `ballast policies`")
    assert sum(name in answer for name in MANY) == 3


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("tpu", "known: crash, drain, slow"),
        ("crush", "known: crash, drain, slow; did you mean crash?"),
        ("", "known: crash, drain, slow"),
    ],
)
def test_a_few_names_are_written_out(name: str, answer: str) -> None:
    assert known_names(name, ["slow", "crash", "drain"], "ballast kinds") == answer


def test_names_that_no_command_lists_are_given_by_their_range() -> None:
    assert known_names("x", MANY) == "16 are known, from policy-a to policy-p"


def test_an_unknown_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(PolicyChoiceError) as caught:
        parse_policies("least-request")
    problem = caught.value.problem
    assert problem.startswith("unknown placement 'least-request'; did you mean least-requests")
    assert problem.endswith("are known, see `ballast policies`")
    assert "sibyl" not in problem
