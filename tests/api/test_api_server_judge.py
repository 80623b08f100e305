"""The judge of the real server's answers finds every kind of disagreement (a real server gives none)."""

from __future__ import annotations

from typing import Any

from ballast_api.resources import KINDS
from tests.support.api_mutations import MUTATIONS, Mutation
from tests.support.api_server_judge import disagreements, named_fields, sweep

ACCEPTED = Mutation("fine", "ServingPool", {})
REFUSED = Mutation("wrong", "ServingPool", {"spec.gpuBudget": 1}, "spec.gpuBudget", server_message="raise it")


def refusal(field: str, message: str) -> tuple[int, dict[str, Any]]:
    return 422, {"message": message, "details": {"causes": [{"field": field}]}}


def defaulted(_: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 201, KINDS[body["kind"]].parse(body).dump()


def test_agreement_is_silence() -> None:
    """The server accepts with our defaults, and refuses with our field and words."""
    assert disagreements(defaulted, table=[ACCEPTED]) == []
    assert disagreements(lambda *_: refusal("spec.gpuBudget", "raise it"), table=[REFUSED]) == []


def test_a_server_that_accepts_everything_is_found_out() -> None:
    """One line for each object that should have been refused."""
    lines = disagreements(lambda _, body: (201, body), table=[m for m in MUTATIONS if m.field])
    assert len(lines) == sum(1 for mutation in MUTATIONS if mutation.field)


def test_other_fields_words_and_defaults_are_found_out() -> None:
    """Each by a line of its own."""
    assert "names ['spec']" in disagreements(lambda *_: refusal("spec", "raise it"), table=[REFUSED])[0]
    assert "does not say 'raise it'" in disagreements(lambda *_: refusal("spec.gpuBudget", "no"), table=[REFUSED])[0]
    assert "defaults differ" in disagreements(lambda _, body: (201, body), table=[ACCEPTED])[0]
    assert "the server refuses it" in disagreements(lambda *_: refusal("spec", "no"), table=[ACCEPTED])[0]


def test_fields_are_read_from_causes_and_from_strict_decoding() -> None:
    """The server has two ways to name a field."""
    strict = 'strict decoding error: unknown field "spec.a", unknown field "spec.b[0].c"'
    answer = {"message": strict, "details": {"causes": [{"field": "spec.d"}]}}
    assert named_fields(answer) == {"spec.a", "spec.b[0].c", "spec.d"}


def test_the_sweep_visits_every_field_of_every_spec() -> None:
    """A field that the full object leaves out would go unchecked."""
    visited = {path for kind in KINDS for mutation in sweep(kind) for path in mutation.edits}
    for model in KINDS.values():
        spec = model.model_fields["spec"].annotation
        assert spec is not None
        for name, info in spec.model_fields.items():
            assert f"spec.{info.alias or name}" in visited
