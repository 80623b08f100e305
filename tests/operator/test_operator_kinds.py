"""One table of kinds: the rights that the chart grants are those that the table needs, no more and no less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

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

CHART = Path(__file__).parents[2] / "charts" / "ballast" / "templates"
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


def needed(kinds: tuple[Kind, ...], verbs: set[str], suffix: str = "") -> Rights:
    return {(kind.group, kind.plural + suffix): verbs for kind in kinds}


def test_the_chart_grants_what_the_table_needs_where_serving_pools_are() -> None:
    """All children are watched but those that are read by their names."""
    granted = rights(
        block((CHART / "_helpers.tpl").read_text(), '{{- define "ballast.namespacedRules" -}}', "{{- end }}")
    )
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
    assert granted == expected


def test_the_chart_grants_what_the_table_needs_in_the_whole_cluster() -> None:
    """Profiles are cluster-scoped, Gateways may be anywhere."""
    granted = rights(block((CHART / "rbac.yaml").read_text(), "rules:", "  {{- if"))
    expected = {
        **needed((HARDWARE_PROFILE,), READ),
        **needed((HARDWARE_PROFILE,), {"patch"}, "/status"),
        **needed((GATEWAY, GATEWAY_CLASS), READ),
    }
    assert granted == expected
