"""What tests ask of plans and verdicts, and situations that several modules know."""

from __future__ import annotations

from ballast_operator.kinds import (
    EXTENSION_POLICY,
    GATEWAY,
    HTTP_ROUTE,
    TRAFFIC_POLICY,
    Manifest,
)
from ballast_operator.observed import Observed
from ballast_operator.outcome import Refusal
from ballast_operator.planning.planned import Plan
from tests.support.operator_builders import (
    profile,
    profiles,
    status_of,
)

ENVOY_GATEWAY = frozenset({GATEWAY, HTTP_ROUTE, EXTENSION_POLICY, TRAFFIC_POLICY})
PARENT = {"parentRefs": [{"name": "front"}]}
TWO_GPU_PREFILL = {**profiles("h20"), "a100": profile("a100", gpus=2)}


def objects(result: Plan) -> list[str]:
    return [f"{item['kind']}/{item['metadata']['name']}" for item in result.apply]


def find(result: Plan, kind: str, name: str) -> Manifest:
    return next(item for item in result.apply if (item["kind"], item["metadata"]["name"]) == (kind, name))


def condition(situation: Observed, kind: str, *refusals: Refusal) -> tuple[str, str]:
    found = next(item for item in status_of(situation, *refusals)["conditions"] if item["type"] == kind)
    return found["status"], found["reason"]


def message(situation: Observed, kind: str) -> str:
    return str(next(item["message"] for item in status_of(situation)["conditions"] if item["type"] == kind))


def engine(result: Plan, name: str) -> Manifest:
    containers = find(result, "Deployment", name)["spec"]["template"]["spec"]["containers"]
    return next(item for item in containers if item["name"] == "engine")
