"""Recording rules and alerts: burn rates of the objectives that users declare, and few causes worth waking for.

The form is that of Google's SRE workbook, "Alerting on SLOs", 6: several windows, several burn rates. Targets are not
in the rules but in a metric that each gateway exports, so a changed ServiceLevelObjective needs no new rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

RUNBOOKS: Final = "docs/runbooks.md"
"""The chart's `monitoring.runbooks` takes its place."""
EACH: Final = "namespace, serving_pool, objective"
WINDOWS: Final = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
LEAST_REQUESTS: Final = 20
"""In the long window of a burn rate: of fewer, a single one would wake somebody."""
LOADS: Final = "30m"
"""Engines that are new, or were at zero, may take so long until they serve."""
MOST_RATIO: Final = 0.5
"""Misses that raise the alarm whatever the budget: 14.4 times a budget of 10 % cannot be missed."""

_JUDGED: Final = "ballast_gateway_objective_requests_total"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded series."""

    name: str
    expression: str
    labels: tuple[str, ...] = ("namespace", "serving_pool", "objective")


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. Its runbook is the section of `RUNBOOKS` that is named after it."""

    name: str
    expression: str
    waits: str
    """How long the expression must hold."""
    severity: str
    """page: somebody should get up. ticket: in working hours."""
    summary: str
    description: str


def _requests(window: str) -> Recording:
    matchers = 'threshold="joint",result=~"within|outside"'
    return Recording(
        f"ballast:objective_requests:rate{window}", f"sum by ({EACH}) (rate({_JUDGED}{{{matchers}}}[{window}]))"
    )


def _errors(window: str) -> Recording:
    matchers = 'threshold="joint",result="outside"'
    return Recording(
        f"ballast:objective_error_ratio:rate{window}",
        f"sum by ({EACH}) (rate({_JUDGED}{{{matchers}}}[{window}])) / (ballast:objective_requests:rate{window} > 0)",
    )


RECORDINGS: Final = (
    Recording(
        "ballast:objective_error_budget:ratio",
        f"clamp_min(1 - max by ({EACH}) (ballast_gateway_objective_target_ratio), 0.001)",
    ),
    *(make(window) for window in WINDOWS for make in (_requests, _errors)),
)


def _burns(factor: float, long: str, short: str, seconds: int) -> str:
    budget = f"clamp_max({factor:g} * ballast:objective_error_budget:ratio, {MOST_RATIO:g})"
    return (
        f"ballast:objective_error_ratio:rate{long} > {budget} "
        f"and ballast:objective_error_ratio:rate{short} > {budget} "
        f"and ballast:objective_requests:rate{long} * {seconds} >= {LEAST_REQUESTS}"
    )


_CLASS: Final = "{{ $labels.objective }} of {{ $labels.namespace }}/{{ $labels.serving_pool }}"
_POOL: Final = "{{ $labels.namespace }}/{{ $labels.serving_pool }}"
_MISSES: Final = "{{ $value | humanizePercentage }} of its requests miss their objective."


def _reasons(matchers: str) -> str:
    """Why a condition is as it is, for an annotation: an alert with such a label would begin anew with each reason."""
    series = f"ballast_operator_condition{{{matchers},namespace='%s',serving_pool='%s'}}"
    asked = f"{{{{ range query (printf `{series}` $labels.namespace $labels.serving_pool) }}}}"
    return asked + "{{ .Labels.reason }}. {{ end }}"


ALERTS: Final = (
    Alert(
        "BallastSloFastBurn",
        _burns(14.4, "1h", "5m", 3600),
        "2m",
        "page",
        f"Class {_CLASS} burns its error budget 14 times too fast.",
        f"{_MISSES} At this rate a month's budget is gone in two days.",
    ),
    Alert(
        "BallastSloSlowBurn",
        _burns(6, "6h", "30m", 21600),
        "15m",
        "page",
        f"Class {_CLASS} burns its error budget 6 times too fast.",
        f"{_MISSES} At this rate a month's budget is gone in five days.",
    ),
    Alert(
        "BallastSloBudgetBurn",
        f"({_burns(3, '1d', '2h', 86400)}) or ({_burns(1, '3d', '6h', 259200)})",
        "1h",
        "ticket",
        f"Class {_CLASS} spends more than its error budget.",
        f"{_MISSES} The budget of this month will not last.",
    ),
    Alert(
        "BallastPoolUnavailable",
        "max by (namespace, serving_pool) "
        '(ballast_operator_condition{type="Available",status="False",reason!="ScaledToZero"}) == 1 '
        "and count by (namespace, serving_pool) "
        f'(last_over_time(ballast_operator_condition{{type="Available"}}[{LOADS}] offset {LOADS})) '
        "unless max by (namespace, serving_pool) "
        f'(max_over_time(ballast_operator_condition{{type="Available",reason="ScaledToZero"}}[{LOADS}])) == 1',
        "2m",
        "page",
        f"ServingPool {_POOL} is not available.",
        _reasons("type='Available',status='False'") + "Its requests are not served as they should be.",
    ),
    Alert(
        "BallastNoEndpoints",
        "sum by (namespace, serving_pool) "
        '(rate(ballast_gateway_rejections_total{reason=~"no-endpoints|upstream-failed|retry-budget"}[2m])) > 0',
        "2m",
        "page",
        f"Requests of {_POOL} get no endpoint.",
        "{{ $value | humanize }} requests a second are answered with 503, for want of endpoints or as all of them "
        "fail.",
    ),
    Alert(
        "BallastShedding",
        "sum by (namespace, serving_pool) (rate(ballast_gateway_shed_total[10m])) "
        "> 0.05 * sum by (namespace, serving_pool) (rate(ballast_gateway_requests_total[10m]))",
        "10m",
        "ticket",
        f"{_POOL} sheds more than 5 % of its requests.",
        "{{ $value | humanize }} requests a second get 429: the fleet is too small for its traffic.",
    ),
    Alert(
        "BallastInstancesMissing",
        'max by (namespace, serving_pool, pool) (ballast_operator_instances{count="ready"}) '
        '< max by (namespace, serving_pool, pool) (ballast_operator_instances{count="wanted"})',
        "15m",
        "ticket",
        f"Pool {{{{ $labels.pool }}}} of {_POOL} has fewer ready instances than wanted.",
        "{{ $value }} are ready. What is left carries the load of all.",
    ),
    Alert(
        "BallastRoleMissing",
        "sum by (namespace, serving_pool, missing) (rate(ballast_gateway_fallback_dispatches_total[2m])) > 0",
        "5m",
        "ticket",
        f"{_POOL} serves requests without a {{{{ $labels.missing }}}} endpoint.",
        "Endpoints of the other role serve them whole: slower, and without their own work suffering only while load is "
        "low.",
    ),
    Alert(
        "BallastEnginesFail",
        "sum by (namespace, serving_pool) "
        '(rate(ballast_gateway_failed_legs_total{fault=~"unreachable|broke|error|silent"}[10m])) '
        "> 0.02 * sum by (namespace, serving_pool) (rate(ballast_gateway_dispatches_total[10m]))",
        "10m",
        "ticket",
        f"More than 2 % of the legs of {_POOL} fail.",
        "Engines die, hang or answer 5xx; retries and rescues hide it from clients as far as they go.",
    ),
    Alert(
        "BallastEndpointBad",
        '(max by (namespace, serving_pool, role) (ballast_gateway_endpoint_health{state=~"ejected|probing"}) > 0 '
        "and max by (namespace, serving_pool, role) "
        '(max_over_time(ballast_gateway_endpoint_health{state="ejected"}[5m])) > 0) '
        'or max by (namespace, serving_pool, role) (ballast_gateway_endpoints{state="unreachable"}) > 0',
        "10m",
        "ticket",
        f"A {{{{ $labels.role }}}} endpoint of {_POOL} stays bad.",
        "It is Ready, yet its requests fail or its metrics cannot be read. It gets no new requests.",
    ),
    Alert(
        "BallastKvFull",
        "max by (namespace, serving_pool, endpoint) "
        '(ballast_gateway_endpoint_kv_usage_ratio{source="seen",role!="prefill"}) > 0.95 '
        "and max by (namespace, serving_pool, endpoint) (rate(ballast_gateway_endpoint_preemptions_total[10m])) > 0",
        "10m",
        "ticket",
        f"The KV cache of {{{{ $labels.endpoint }}}} of {_POOL} is full, and it preempts requests.",
        "Preempted requests compute their tokens again: the fleet has less capacity than it seems.",
    ),
    Alert(
        "BallastPoolDegraded",
        'max by (namespace, serving_pool) (ballast_operator_condition{type="Degraded",status="True"}) == 1',
        "15m",
        "ticket",
        f"ServingPool {_POOL} is degraded.",
        _reasons("type='Degraded',status='True'") + "The condition's message has the field to edit and the fix.",
    ),
    Alert(
        "BallastSettingsRefused",
        "max by (namespace, serving_pool) (ballast_gateway_settings_refused) == 1",
        "5m",
        "ticket",
        f"Gateways of {_POOL} refuse their newest settings.",
        "Those before are in force. A restart of a gateway would fail now.",
    ),
    Alert(
        "BallastCertificateExpires",
        "min by (namespace, serving_pool, face) "
        "(ballast_gateway_tls_certificate_expiry_timestamp_seconds) - time() < 7 * 86400",
        "1h",
        "ticket",
        f"The certificate of the {{{{ $labels.face }}}} face of {_POOL} expires within a week.",
        "{{ $value | humanizeDuration }} are left. Nobody renews the Secret.",
    ),
    Alert(
        "BallastOperatorDown",
        "absent(ballast_operator_looks_total)",
        "10m",
        "ticket",
        "No operator works.",
        "Gateways and engines go on; changes of ServingPools and lost nodes are not acted upon.",
    ),
    Alert(
        "BallastLooksFail",
        'sum by (kind) (rate(ballast_operator_looks_total{result="failed"}[10m])) '
        "> 0.5 * sum by (kind) (rate(ballast_operator_looks_total[10m]))",
        "15m",
        "ticket",
        "Most looks of the operator at {{ $labels.kind }} objects fail.",
        "The API server is away or refuses it, or it is a fault of ours: see its log.",
    ),
)


GATEWAYS_GONE: Final = Alert(
    "BallastGatewaysGone",
    'absent(ballast_gateway_build_info{namespace="NAMESPACE",serving_pool="RELEASE"})',
    "2m",
    "page",
    "No gateway of NAMESPACE/RELEASE answers.",
    "Its clients get no answer, or the proxy in front of it says so.",
)
"""Where no operator watches the gateways. What is absent has no labels of its own, so the chart writes in the
release's own namespace and name."""


def _rule(alert: Alert, waits: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": waits,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{RUNBOOKS}#{alert.name.lower()}",
        },
    }


def rule_file(*, waits: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What Prometheus reads. `waits`: other times for which alerts must hold, by name."""
    named = waits or {}
    recordings = [{"record": each.name, "expr": each.expression} for each in RECORDINGS]
    alerts = [_rule(each, named.get(each.name, each.waits)) for each in ALERTS]
    return {"groups": [{"name": "ballast-objectives", "rules": recordings}, {"name": "ballast", "rules": alerts}]}


def gateway_only_file() -> dict[str, Any]:
    """What the chart adds with `gateway.only`."""
    return {"groups": [{"name": "ballast-gateway-only", "rules": [_rule(GATEWAYS_GONE, GATEWAYS_GONE.waits)]}]}
