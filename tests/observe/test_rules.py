"""Each alert fires when it should, and does not when it should not: judged by promtool on series that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from dashboards.rules import ALERTS, GATEWAYS_GONE
from tests.support.promtool import promtool

RULES = Path(__file__).resolve().parents[2] / "charts/ballast/rules"
POOL = 'namespace="n",serving_pool="p"'
BUILD = 'ballast_gateway_build_info{{namespace="{}",serving_pool="{}",pod="g0"}}'


@dataclass(frozen=True, slots=True)
class Case:
    """Series (a minute between values), when to look, and whether the alert fires then."""

    alert: str
    series: Mapping[str, str]
    at: str
    fires: bool

    def as_test(self) -> dict[str, object]:
        """For promtool: of an alert that does not fire, none may be pending either."""
        state = ',alertstate="firing"' if self.fires else ""
        asked = {
            "expr": f'count(ALERTS{{alertname="{self.alert}"{state}}})',
            "eval_time": self.at,
            "exp_samples": [{"labels": "{}", "value": 1}] if self.fires else [],
        }
        series = [{"series": name, "values": values} for name, values in self.series.items()]
        return {"name": self.alert, "interval": "1m", "input_series": series, "promql_expr_test": [asked]}


def judged(missed: float, met: float, *, minutes: int, target: float = 0.99) -> dict[str, str]:
    """Requests a minute of a class that missed and met its objective, at each of two gateways."""
    found: dict[str, str] = {}
    for pod in ("g0", "g1"):
        labels = f'{POOL},pod="{pod}",objective="chat"'
        of = f'ballast_gateway_objective_requests_total{{{labels},threshold="joint"'
        found[f'{of},result="outside"}}'] = f"0+{missed}x{minutes}"
        found[f'{of},result="within"}}'] = f"0+{met}x{minutes}"
        found[f"ballast_gateway_objective_target_ratio{{{labels}}}"] = f"{target}x{minutes}"
    return found


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    """A ServingPool that says so all the time."""
    labels = f'{POOL},type="{kind}",status="{status}",reason="{reason}"'
    return {f"ballast_operator_condition{{{labels}}}": "1x60"}


def counter(name: str, labels: str, each_minute: float) -> dict[str, str]:
    """A counter that grows evenly."""
    return {f"{name}{{{POOL}{',' if labels else ''}{labels}}}": f"0+{each_minute}x60"}


def gauge(name: str, labels: str, value: str) -> dict[str, str]:
    """A gauge."""
    return {f"{name}{{{POOL}{',' if labels else ''}{labels}}}": value}


def by_turns(name: str, labels: str, others: tuple[str, str]) -> dict[str, str]:
    """A gauge with one further label, then with another one, a minute each."""
    shown = ("1 stale " * 30, "stale 1 " * 30)
    return {f"{name}{{{POOL},{labels},{other}}}": values for other, values in zip(others, shown, strict=True)}


def instances(ready: int) -> dict[str, str]:
    """Of two pools with four wanted each; one has all."""
    name = "ballast_operator_instances"
    return {
        f'{name}{{{POOL},pool="{pool}",count="{count}"}}': f"{value}x60"
        for pool, counts in {"prefill": (4, 4), "decode": (4, ready)}.items()
        for count, value in zip(("wanted", "ready"), counts, strict=True)
    }


def waking() -> dict[str, str]:
    """A ServingPool that was at zero for ten minutes, and has had no ready engine since."""
    labels = f'{POOL},type="Available",status="False",reason="{{}}"'
    shown = {"ScaledToZero": "1x10 stale", "DecodeNotReady": "_x10 1x60"}
    return {f"{CONDITION}{{{labels.format(reason)}}}": values for reason, values in shown.items()}


def of_two_operators(ready: int) -> dict[str, str]:
    """Of a pool with four wanted: one operator tells of it, then the other one, a minute each."""
    name, others = "ballast_operator_instances", ('pod="o0"', 'pod="o1"')
    shown = by_turns(name, 'pool="decode",count="ready"', others) | by_turns(
        name, 'pool="decode",count="wanted"', others
    )
    return {series: values.replace("1", str(4 if "wanted" in series else ready)) for series, values in shown.items()}


def looks(failed: int, done: int) -> dict[str, str]:
    """Of the operator, a minute."""
    counts = {"failed": failed, "done": done}
    return {f'{LOOKS}{{kind="k",result="{result}"}}': f"0+{count}x60" for result, count in counts.items()}


REQUESTS = counter("ballast_gateway_requests_total", 'outcome="completed"', 100)
LEGS = counter("ballast_gateway_dispatches_total", 'stage="decode"', 100)
ENDPOINT = 'endpoint="d0",pool="d",role="decode"'
KV = gauge("ballast_gateway_endpoint_kv_usage_ratio", f'{ENDPOINT},source="seen"', "0.99x60")
LOOKS = "ballast_operator_looks_total"
UNREACHABLE = 'role="decode",pool="d",state="unreachable"'
READY = 'role="decode",pool="d",state="ready"'
CONDITION = "ballast_operator_condition"
REASONS = ('reason="GatewayNotReady"', 'reason="PrefillNotReady"')
HEALTH = "ballast_gateway_endpoint_health"
FALLBACKS = "ballast_gateway_fallback_dispatches_total"
EXPIRY = "ballast_gateway_tls_certificate_expiry_timestamp_seconds"

CASES = (
    Case("BallastSloFastBurn", judged(20, 80, minutes=75), "70m", True),
    Case("BallastSloFastBurn", judged(10, 90, minutes=75), "70m", False),
    Case("BallastSloFastBurn", judged(0.1, 0.05, minutes=75), "70m", False),  # 18 requests an hour
    Case("BallastSloFastBurn", judged(60, 40, minutes=75, target=0.9), "70m", True),  # 144 % cannot be missed
    Case("BallastSloFastBurn", judged(40, 60, minutes=75, target=0.9), "70m", False),
    Case("BallastSloSlowBurn", judged(8, 92, minutes=400), "390m", True),
    Case("BallastSloSlowBurn", judged(4, 96, minutes=400), "390m", False),
    Case("BallastSloBudgetBurn", judged(2, 98, minutes=500), "490m", True),
    Case("BallastSloBudgetBurn", judged(0.5, 99.5, minutes=500), "490m", False),
    Case("BallastPoolUnavailable", condition("Available", "False", "DecodeNotReady"), "29m", False),  # it is new
    Case("BallastPoolUnavailable", condition("Available", "False", "DecodeNotReady"), "40m", True),
    Case("BallastPoolUnavailable", condition("Available", "False", "ScaledToZero"), "40m", False),
    Case("BallastPoolUnavailable", condition("Available", "True", "Ready"), "40m", False),
    Case("BallastPoolUnavailable", by_turns(CONDITION, 'type="Available",status="False"', REASONS), "40m", True),
    Case("BallastPoolUnavailable", waking(), "30m", False),  # models load
    Case("BallastPoolUnavailable", waking(), "50m", True),
    Case("BallastNoEndpoints", counter("ballast_gateway_rejections_total", 'reason="no-endpoints"', 1), "10m", True),
    Case("BallastNoEndpoints", counter("ballast_gateway_rejections_total", 'reason="no-endpoints"', 0), "10m", False),
    Case("BallastNoEndpoints", counter("ballast_gateway_rejections_total", 'reason="saturated"', 9), "10m", False),
    Case("BallastShedding", REQUESTS | counter("ballast_gateway_shed_total", 'cause="backlog"', 6), "30m", True),
    Case("BallastShedding", REQUESTS | counter("ballast_gateway_shed_total", 'cause="backlog"', 4), "30m", False),
    Case("BallastInstancesMissing", instances(3), "20m", True),
    Case("BallastInstancesMissing", instances(4), "20m", False),
    Case("BallastInstancesMissing", of_two_operators(3), "20m", True),  # one takes over from the other
    Case("BallastRoleMissing", counter(FALLBACKS, 'missing="decode"', 1), "15m", True),
    Case("BallastRoleMissing", counter(FALLBACKS, 'missing="decode"', 0), "15m", False),
    Case("BallastEnginesFail", LEGS | counter("ballast_gateway_failed_legs_total", 'fault="broke"', 3), "30m", True),
    Case("BallastEnginesFail", LEGS | counter("ballast_gateway_failed_legs_total", 'fault="broke"', 1), "30m", False),
    Case("BallastEnginesFail", LEGS | counter("ballast_gateway_failed_legs_total", 'fault="refused"', 9), "30m", False),
    Case("BallastEndpointBad", gauge(HEALTH, 'role="decode",state="ejected"', "1x60"), "15m", True),
    Case("BallastEndpointBad", by_turns(HEALTH, 'role="decode"', ('state="ejected"', 'state="probing"')), "15m", True),
    Case("BallastEndpointBad", gauge(HEALTH, 'role="decode",state="probing"', "1x60"), "15m", False),  # nobody asks it
    Case("BallastEndpointBad", gauge("ballast_gateway_endpoints", UNREACHABLE, "1x60"), "15m", True),
    Case("BallastEndpointBad", gauge("ballast_gateway_endpoints", READY, "1x60"), "15m", False),
    Case("BallastKvFull", KV | counter("ballast_gateway_endpoint_preemptions_total", ENDPOINT, 1), "30m", True),
    Case("BallastKvFull", KV | counter("ballast_gateway_endpoint_preemptions_total", ENDPOINT, 0), "30m", False),
    Case("BallastPoolDegraded", condition("Degraded", "True", "CrashLoop"), "20m", True),
    Case("BallastPoolDegraded", condition("Degraded", "False", "AsExpected"), "20m", False),
    Case("BallastPoolDegraded", by_turns(CONDITION, 'type="Degraded",status="True"', REASONS), "20m", True),
    Case("BallastSettingsRefused", gauge("ballast_gateway_settings_refused", 'pod="g0"', "1x60"), "10m", True),
    Case("BallastSettingsRefused", gauge("ballast_gateway_settings_refused", 'pod="g0"', "0x60"), "10m", False),
    Case("BallastCertificateExpires", gauge(EXPIRY, 'face="proxy"', "600000x120"), "90m", True),
    Case("BallastCertificateExpires", gauge(EXPIRY, 'face="proxy"', "900000x120"), "90m", False),
    Case("BallastOperatorDown", {}, "15m", True),
    Case("BallastOperatorDown", {f'{LOOKS}{{kind="ServingPool",result="done"}}': "0+1x60"}, "15m", False),
    Case("BallastGatewaysGone", {}, "5m", True),
    Case("BallastGatewaysGone", {BUILD.format("n", "another"): "1x60", BUILD.format("other", "p"): "1x60"}, "5m", True),
    Case("BallastGatewaysGone", {BUILD.format("n", "p"): "1x60"}, "5m", False),
    Case("BallastLooksFail", looks(2, 1), "30m", True),
    Case("BallastLooksFail", looks(1, 2), "30m", False),
)


def test_each_alert_has_cases_of_both_kinds() -> None:
    """One in which it fires, one in which it does not."""
    for alert in (*ALERTS, GATEWAYS_GONE):
        assert {case.fires for case in CASES if case.alert == alert.name} == {True, False}, alert.name


@pytest.mark.rotating(3)
def test_alerts_fire_and_do_not(tmp_path: Path) -> None:
    """All cases in one run, and those of `gateway.only` with the names that Helm writes in."""
    path = tmp_path / "cases.yaml"
    cases = [case.as_test() for case in CASES]
    only = tmp_path / "gateway-only.yaml"
    only.write_text((RULES / "gateway-only.yaml").read_text().replace("NAMESPACE", "n").replace("RELEASE", "p"))
    files = [str(RULES / "ballast.yaml"), str(only)]
    path.write_text(yaml.safe_dump({"rule_files": files, "evaluation_interval": "1m", "tests": cases}))
    promtool("test", "rules", path)
