"""What lies in crds/, charts/ and docs/reference is what the models say, and third-party tools read it so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ballast_api import generate
from ballast_api.chart_values import ChartValues
from ballast_api.common import GROUP
from ballast_api.names import common_labels
from ballast_api.resources import KINDS
from tests.support.api_mutations import MUTATIONS, Mutation
from tests.support.api_objects import full, valid

pytestmark = pytest.mark.rotating(4, each=True)

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/ballast"


def crd_schema(kind: str) -> dict[str, Any]:
    name = f"{GROUP}_{KINDS[kind].plural}.yaml"
    crd = yaml.safe_load((ROOT / generate.CRDS / name).read_text())
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_generated_files_are_up_to_date() -> None:
    """`make generate` would change nothing."""
    assert list(generate.differences(ROOT, generate.generated_files())) == []


def test_check_lists_a_changed_a_missing_and_a_stale_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `make verify` shows; hand-written neighbours are left alone."""
    assert generate.main(["--out", str(tmp_path)]) == 0
    assert generate.main(["--out", str(tmp_path), "--check"]) == 0
    changed, missing = tmp_path / "charts/ballast/values.yaml", tmp_path / "docs/reference/policies.md"
    changed.write_text(changed.read_text() + "# edited by hand\n")
    missing.unlink()
    shutil.copy(tmp_path / "docs/reference/conditions.md", tmp_path / "docs/reference/old.md")
    (tmp_path / "docs/reference/neighbour.md").write_text("# by hand\n")
    capsys.readouterr()
    assert generate.main(["--out", str(tmp_path), "--check"]) == 1
    out, err = capsys.readouterr()
    assert "-# edited by hand" in out
    assert [line.split()[3] for line in err.splitlines()] == [
        "charts/ballast/values.yaml",
        "docs/reference/policies.md",
        "docs/reference/old.md",
    ]
    assert generate.main(["--out", str(tmp_path)]) == 0
    assert generate.main(["--out", str(tmp_path), "--check"]) == 0
    assert (tmp_path / "docs/reference/neighbour.md").exists()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_valid_objects_pass_the_schema_of_their_crd(kind: str) -> None:
    """Judged by jsonschema; OpenAPI v3.0 has draft 4's exclusive bounds."""
    schema = crd_schema(kind)
    jsonschema.Draft4Validator.check_schema(schema)
    validator = jsonschema.Draft4Validator(schema)
    for value in (valid(kind), full(kind), KINDS[kind].parse(full(kind)).dump()):
        assert list(validator.iter_errors(value)) == []


def by_types_alone(mutation: Mutation) -> bool:
    """Refused by the schema without CEL, list-map keys and the refusal of unknown fields."""
    by_others = (
        "set exactly one",
        "earlier entry",
        "did you mean",
        "a percentage",
        "no parameter",
        "no scaling",
        "a field here",
    )
    return bool(mutation.field) and not mutation.server_message and not any(w in mutation.message for w in by_others)


RULES = {
    "hw-kv-below-block",
    "hw-no-a",
    "hw-no-time",
    "hw-one-speed",
    "slo-empty",
    "slo-e2e-below-ttft",
    "pool-surge-fraction",
}


@pytest.mark.parametrize(
    "mutation", [m for m in MUTATIONS if by_types_alone(m) and m.id not in RULES], ids=lambda mutation: mutation.id
)
def test_malformed_objects_fail_the_schema_of_their_crd(mutation: Mutation) -> None:
    """A third judge besides the server and pydantic."""
    assert not jsonschema.Draft4Validator(crd_schema(mutation.kind)).is_valid(mutation.object())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_columns_of_kubectl_get_point_at_fields(kind: str) -> None:
    """A wrong path would print an empty column for ever."""
    schema = crd_schema(kind)
    for column in KINDS[kind].printer_columns:
        if column.json_path.startswith(".metadata"):
            continue
        node = schema
        for step in column.json_path.partition("[")[0].strip(".").split("."):
            node = node["properties"][step]


def test_the_charts_crds_are_the_same_between_their_guards() -> None:
    """`helm upgrade` upgrades templates, never a chart's crds/ folder."""
    for path in sorted((ROOT / generate.CRDS).glob("*.yaml")):
        text = (CHART / "templates/crds" / path.name).read_text()
        assert (
            text.count("{{- if and .Values.crds.enabled (not .Values.gateway.only.enabled) }}")
            == text.count("helm.sh/resource-policy: keep")
            == 1
        )
        keep = ("{{", "  annotations:", "    helm.sh/resource-policy")
        plain = "\n".join(
            line for line in text.splitlines() if not line.strip().startswith("{{") and not line.startswith(keep)
        )
        assert yaml.safe_load(plain) == yaml.safe_load(path.read_text())
    assert not (CHART / "crds").exists()


def test_the_charts_values_pass_their_schema_and_are_the_models_defaults() -> None:
    """values.yaml, values.schema.json and the model are three views of one thing."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(values, schema, cls=jsonschema.Draft202012Validator)
    assert ChartValues.parse(values) == ChartValues()


@pytest.mark.parametrize(
    "edit",
    [
        {"logLevel": "loud"},
        {"replicas": 0},
        {"image": {"tag": 1}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"watchNamespaces": ["A_b"]},
        {"watchNamespaces": "default"},
        {"crds": {"keep": "yes"}},
        {"crds": {"kept": True}},
        {"podLabels": {"a": 1}},
    ],
    ids=str,
)
def test_wrong_chart_values_are_refused_by_the_schema(edit: dict[str, Any]) -> None:
    """Helm checks values by this file before it renders."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert not jsonschema.Draft202012Validator(schema).is_valid(edit)


def test_the_charts_component_labels_are_not_those_of_a_serving_pool() -> None:
    """No Service or PodDisruptionBudget of a ServingPool may select the operator."""
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    assert "app.kubernetes.io/component: operator" in helpers
    assert common_labels("a", "engine")["app.kubernetes.io/component"] != "operator"
