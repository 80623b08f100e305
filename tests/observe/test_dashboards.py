"""Dashboards and rules ask for what is exported: declared metrics, with labels that they have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ballast_api.gateway_metrics import GATEWAY
from ballast_api.metric_declaring import TARGET_LABELS
from ballast_api.metrics import METRICS, OPERATOR
from dashboards.everything import DASHBOARDS, generated_files
from dashboards.rules import ALERTS, GATEWAYS_GONE, RECORDINGS
from tests.support.promql import as_asked, named
from tests.support.promtool import promtool

ROOT = Path(__file__).resolve().parents[2]
SERIES = {series: set(each.labels) for each in METRICS.values() for series in each.series}
SERIES |= {f"{each.name}_bucket": {*each.labels, "le"} for each in METRICS.values() if each.kind == "histogram"}
RECORDED = {each.name: set(each.labels) for each in RECORDINGS}
EXPRESSIONS = [
    *(
        (f"{board.name}: {panel.title}", text)
        for board in DASHBOARDS
        for panel in board.panels
        for text, _ in panel.expressions
    ),
    *((each.name, each.expression) for each in RECORDINGS),
    *((each.name, each.expression) for each in ALERTS),
]


def test_what_an_expression_names_is_found() -> None:
    """Series with their matchers, groupings; neither functions nor what stands in texts."""
    found = named(
        'sum by (x, le) (rate(a_b{c="d{e}",f=~"g"}[5m])) / on (y) group_left () z:w offset 1h > 0 and absent(q)'
    )
    assert dict(found.selectors) == {"a_b": {"c", "f"}, "z:w": frozenset(), "q": frozenset()}
    assert found.grouped == {"x", "le", "y"}


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_expressions_name_only_what_is_declared(where: str, expression: str) -> None:
    """Every series, every label that selects it, every label that results are grouped by."""
    found = named(expression)
    assert found.selectors
    known = {"serving_pool", "namespace", *TARGET_LABELS}
    for name, labels in found.selectors:
        has = RECORDED.get(name) or SERIES[name] | set(TARGET_LABELS)
        assert labels <= has, (name, labels - has)
        known |= has
    assert found.grouped <= known


def test_each_metric_is_on_a_dashboard_or_in_an_alert() -> None:
    """But those that only tell a machine."""
    shown = {name for _, expression in EXPRESSIONS for name, _ in named(expression).selectors}
    unseen = {each.name for each in (*GATEWAY, *OPERATOR) if not shown & {*each.series, each.name}}
    assert unseen == {
        "ballast_gateway_requests_waiting",  # by class
        "ballast_gateway_retry_budget",
        "ballast_gateway_tls_reloads_total",
        "ballast_gateway_tls_refused_total",
        "ballast_gateway_kv_batches_total",
        "ballast_gateway_kv_unreadable_total",
        "ballast_gateway_kv_blocks",
    }


def test_each_panel_says_what_is_good_what_is_bad_and_what_to_do() -> None:
    """And fits a row of 24; each title once."""
    for board in DASHBOARDS:
        titles = [panel.title for panel in board.panels]
        assert len(titles) == len(set(titles))
        for panel in board.panels:
            assert all(word in panel.about for word in ("Bad: ", "Do: ")), panel.title
            assert 24 % panel.width == 0


def test_the_charts_files_are_those_of_the_code() -> None:
    """What `make verify` checks."""
    for path, text in generated_files().items():
        assert (ROOT / path).read_text() == text, f"{path}: run `make dashboards`"
        if path.endswith(".json"):
            board = json.loads(text)
            assert board["uid"].startswith("ballast-")
            assert {panel["type"] for panel in board["panels"]} <= {
                "row", "timeseries", "stat", "status-history", "heatmap", "table",
            }  # fmt: skip


def test_promtool_reads_every_expression(tmp_path: Path) -> None:
    """The rules as they are; each panel's expression as a rule of its own."""
    promtool("check", "rules", ROOT / "charts/ballast/rules/ballast.yaml")
    panels = [
        {"record": f"panel:{number}", "expr": as_asked(expression)}
        for number, (_, expression) in enumerate(EXPRESSIONS)
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}))
    promtool("check", "rules", path)


def sections() -> Iterator[str]:
    """Headings of the runbooks."""
    for line in (ROOT / "docs/runbooks.md").read_text().splitlines():
        if line.startswith("## "):
            yield line.removeprefix("## ")


def test_each_alert_has_a_runbook() -> None:
    """A section of its name, and no section of an alert that is not there."""
    assert [*sections()] == [each.name for each in (*ALERTS, GATEWAYS_GONE)]
