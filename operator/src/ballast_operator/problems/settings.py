"""Problems of the settings that gateways get."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from ballast_api.conditions import Reason
from ballast_api.errors import explain
from ballast_api.gateway_settings import GatewaySettings, GatewayTuning
from ballast_operator.gateways.settings_reports import Report
from ballast_operator.problems.problem import Problem


def contradictory(error: ValidationError) -> tuple[Problem, ...]:
    """Parts that are valid each by itself do not go together. The check is the gateway's own."""
    return tuple(
        Problem(Reason.SETTINGS_REFUSED, each.message, _field(each.field)) for each in explain(error, GatewaySettings)
    )


def _field(field: str) -> str:
    """Where a field of the settings comes from in a ServingPool."""
    first = field.partition(".")[0]
    tuned = any(first == (info.alias or name) for name, info in GatewayTuning.model_fields.items())
    if tuned:
        return f"spec.gateway.settings.{field}"
    return {"policy": "spec.policyRef", "face": "spec.gateway.face", "profiles": "spec.pools"}.get(
        first, "spec.gateway"
    )


def refused_by(told: Mapping[str, Report], newest: str | None) -> tuple[Problem, ...]:
    """Gateways that refuse the newest settings, such as those of an older image that does not know a field."""
    by_problem: dict[str, list[str]] = {}
    for pod, report in sorted(told.items()):
        if report.hash == newest and report.problem:
            by_problem.setdefault(report.problem, []).append(pod)
    return tuple(
        Problem(Reason.SETTINGS_REFUSED, f"{', '.join(pods)} kept the old settings: {problem}", "spec.gateway")
        for problem, pods in by_problem.items()
    )
