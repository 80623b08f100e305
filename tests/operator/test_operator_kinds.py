"""One table of kinds: the rights that the chart grants are those that the table needs, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_api.chart_values import ChartValues
from ballast_operator.kinds import (
    BUILT_IN_CHILDREN,
    ENGINE_POOL,
    EVENT,
    GATEWAY,
    GATEWAY_CLASS,
    HARDWARE_PROFILE,
    LEASE,
    NAMED_CHILDREN,
    OPTIONAL_CHILDREN,
    POD,
    REFERRED,
    SERVING_POOL,
    Kind,
)

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "ballast" / "templates"
READ = {"get", "list", "watch"}
WRITE = READ | {"create", "patch", "delete"}
Rights = dict[tuple[str, str], set[str]]


def rights(rules: list[dict[str, Any]]) -> Rights:
    """Group and resource to verbs."""
    found: Rights = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def block(text: str, start: str, end: str) -> list[dict[str, Any]]:
    """A list of rules between two markers of a template."""
    rules: list[dict[str, Any]] = yaml.safe_load(text.partition(start)[2].partition(end)[0])
    return rules


def in_namespaces() -> Rights:
    return rights(block((CHART / "_helpers.tpl").read_text(), '{{- define "ballast.namespacedRules" -}}', "{{- end }}"))


def in_the_cluster() -> Rights:
    return rights(block((CHART / "rbac.yaml").read_text(), "rules:", "  {{- if"))


def documented(where: str) -> dict[str, set[str]]:
    """Resource to verbs, of the rows of the page that are about `where`: they read "get, list Pods; patch their
    `status`"."""
    page = (ROOT / "docs" / "operator" / "running.md").read_text()
    found: dict[str, set[str]] = {}
    for row in page.partition("## Rights")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if cells[0] != where:
            continue
        resources: list[str] = []
        for words in cells[1].split("; "):
            clause = re.fullmatch(r"((?:[a-z]+, )*[a-z]+) (.+)", words)
            assert clause is not None, words
            verbs, named = clause.groups()
            if named.startswith("their "):
                resources = [f"{each}/{named.removeprefix('their ').strip('`')}" for each in resources]
            else:
                resources = [each.strip("`").lower() for each in re.split(r", | and ", named)]
            for each in resources:
                found.setdefault(each, set()).update(verbs.split(", "))
    return found


def needed(kinds: tuple[Kind, ...], verbs: set[str], suffix: str = "") -> Rights:
    return {(kind.group, kind.plural + suffix): verbs for kind in kinds}


def test_the_chart_grants_what_the_table_needs_where_serving_pools_are() -> None:
    """All children are watched but those that are read by their names."""
    resources = (SERVING_POOL, *(kind for kind in REFERRED if kind.namespaced))
    expected = {
        **needed(resources, READ),
        **needed((*resources, ENGINE_POOL), {"patch"}, "/status"),
        (SERVING_POOL.group, f"{SERVING_POOL.plural}/finalizers"): {"update"},
        **needed(NAMED_CHILDREN, {"get", "create", "patch"}),
        (LEASE.group, LEASE.plural): {"get", "create", "patch", "update"},
        **needed(BUILT_IN_CHILDREN, WRITE),
        **needed(OPTIONAL_CHILDREN, WRITE),
        **needed((POD,), READ | {"patch"}),
        **needed((EVENT,), {"create"}),
    }
    assert in_namespaces() == expected


def test_the_chart_grants_what_the_table_needs_in_the_whole_cluster() -> None:
    """Profiles are cluster-scoped, Gateways may be anywhere."""
    expected = {
        **needed((HARDWARE_PROFILE,), READ),
        **needed((HARDWARE_PROFILE,), {"patch"}, "/status"),
        **needed((GATEWAY, GATEWAY_CLASS), READ),
    }
    assert in_the_cluster() == expected


@pytest.mark.parametrize(
    ("where", "granted"),
    [("served namespaces", in_namespaces()), ("cluster", in_the_cluster())],
    ids=["pools", "cluster"],
)
def test_the_page_about_running_has_the_rights_that_the_chart_grants(where: str, granted: Rights) -> None:
    assert documented(where) == {resource: verbs for (_, resource), verbs in granted.items()}


def test_the_values_say_what_an_operator_of_some_namespaces_reads_of_the_whole_cluster() -> None:
    said = (ChartValues.model_fields["watch_namespaces"].description or "").partition("cluster-wide it reads ")[2]
    kinds = re.findall(r"[A-Z]\w+", said.partition(", and ")[0])
    assert {each.lower() for each in kinds} == {each.plural for each in (HARDWARE_PROFILE, GATEWAY, GATEWAY_CLASS)}
