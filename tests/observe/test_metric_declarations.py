"""Every metric is declared once, with what bounds it; promtool has nothing against what is exported."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from prometheus_client import generate_latest

from ballast_api.gateway_metrics import GATEWAY
from ballast_api.metric_declaring import LABELS
from ballast_api.metrics import AGENT, METRICS, OPERATOR
from ballast_gateway.agent.metrics import Counts, exposition
from ballast_operator.metrics import OperatorMetrics
from tests.support.gateway_kit import running_gateway
from tests.support.promtool import promtool

HOSTILE = 'a"b\\c\nd{}</x>'


def test_names_tell_kind_and_unit_and_each_label_is_bounded() -> None:
    """By Prometheus' rules; no metric twice, no label that is not explained, no explanation without a label."""
    assert len(METRICS) == len((*GATEWAY, *OPERATOR, *AGENT))
    for each in METRICS.values():
        assert re.fullmatch(r"ballast_(gateway|operator|agent)(_[a-z0-9]+)+", each.name)
        assert (each.kind == "counter") is each.name.endswith("_total"), each.name
        assert each.kind != "histogram" or each.name.endswith("_seconds"), each.name
        assert each.about
        assert each.about.endswith("."), each.name
        assert each.advice.endswith((".", "?")), each.name
        assert set(each.labels) <= LABELS.keys(), each.name
    assert {label for each in METRICS.values() for label in each.labels} | {"le"} == LABELS.keys()


async def test_promtool_finds_nothing_in_what_is_exported(tmp_path: Path) -> None:
    """Names of ServingPools and objectives come from users: hostile ones are escaped."""
    objectives = [{"name": "fast", "ttftS": 1.0}]
    async with (
        running_gateway(tmp_path, {HOSTILE: "127.0.0.1:1"}, wait=False, objectives=objectives) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        page = (await admin.get("/metrics")).text
    assert "ballast_gateway_objective_waiting_requests" in page
    operator = OperatorMetrics()
    operator.looked("ServingPool", "done", 0.1)
    condition = {"type": "Available", "status": "True", "reason": HOSTILE}
    pool = {"name": HOSTILE, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}
    operator.said("default", HOSTILE, {"conditions": [condition], "pools": [pool]})
    agent = exposition(Counts(), held=0, passing=0, readers=0, cut_off=0, refused_calls=0).decode()
    for each in (page, generate_latest(operator.registry).decode(), agent):
        promtool("check", "metrics", stdin=each)
