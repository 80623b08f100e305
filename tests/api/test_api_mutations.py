"""The models accept, refuse and fill in as tests.support.api_mutations says.

A scenario applies the same table to a real kube-apiserver; here the other judge, pydantic, has its turn.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ballast_api.errors import InvalidInput
from ballast_api.loading import parse_resource
from tests.support.api_mutations import MALFORMED_SERVING_POOLS, MUTATIONS, Mutation
from tests.support.api_objects import full, valid

ACCEPTED = [mutation for mutation in MUTATIONS if mutation.field is None]
REFUSED = [mutation for mutation in MUTATIONS if mutation.field is not None]
KINDS = ("ServingPool", "SchedulingPolicy", "ServiceLevelObjective", "HardwareProfile")


def named(mutations: list[Mutation]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mutation", mutations, ids=lambda mutation: mutation.id)


def refusal(mutation: Mutation) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_resource(mutation.object())
    return caught.value


def test_ids_are_unique() -> None:
    """A failing id leads to one row."""
    assert len({mutation.id for mutation in MUTATIONS}) == len(MUTATIONS)


@named(REFUSED)
def test_a_malformed_object_is_refused_for_the_one_field_that_is_wrong(mutation: Mutation) -> None:
    """Exactly that field is named, by its camelCase path, and the message says what to do."""
    error = refusal(mutation)
    assert {problem.field for problem in error.problems} == {mutation.field}
    assert mutation.message in str(error)


@named(ACCEPTED)
def test_a_well_formed_object_is_accepted_and_its_dump_reads_back_equal(mutation: Mutation) -> None:
    """What is written for the API server is what was read, defaults included."""
    resource = parse_resource(mutation.object())
    assert parse_resource(resource.dump()) == resource


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_sets_every_field_is_dumped_as_it_was_given(kind: str) -> None:
    """Nothing is lost or renamed on the way through the models."""
    given = full(kind)
    dumped = parse_resource(given).dump()["spec"]
    if kind == "ServingPool":  # the second pool leaves fields out
        assert dumped["pools"][0] == given["spec"]["pools"][0]
        dumped["pools"] = given["spec"]["pools"] = []
    if kind == "SchedulingPolicy":
        dumped["decode"].pop("parameters")
    assert dumped == given["spec"]


def test_every_problem_of_an_object_is_reported_at_once() -> None:
    """No user has to fix one field to learn of the next."""
    value = valid("ServingPool")
    value["spec"]["pools"][0]["replicas"] = "2"
    value["spec"]["engine"]["port"] = 0
    value["spec"]["gatway"] = {}
    with pytest.raises(InvalidInput) as caught:
        parse_resource(value)
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {"spec.pools[0].replicas", "spec.engine.port", "spec.gatway"}


def test_messages_for_malformed_serving_pools(golden: Callable[[str, str], None]) -> None:
    """What users read, word for word: reviewed as a diff when it changes."""
    assert len(MALFORMED_SERVING_POOLS) >= 30
    parts = []
    for mutation in MALFORMED_SERVING_POOLS:
        edits = "\n".join(f"    {path} = {_shown(value)}" for path, value in mutation.edits.items())
        parts.append(f"{mutation.id}\n{edits}\n  {refusal(mutation)}\n")
    golden("malformed_serving_pools.txt", "\n".join(parts))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:90]}... ({len(text)} characters)"
