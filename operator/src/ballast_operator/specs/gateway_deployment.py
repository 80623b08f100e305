"""The Deployment of the gateway."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from ballast_api import names
from ballast_api.gateway_settings import GatewaySettings, Limits
from ballast_api.serving_pool import GatewaySpec
from ballast_api.settings_changes import restarting_part
from ballast_operator.kinds import DEPLOYMENT, Manifest
from ballast_operator.settings import GatewayDefaults
from ballast_operator.specs.ballast_image import STARTS_WITHIN_S, ballast_image, pull_secrets
from ballast_operator.specs.engine_deployment import REVISION_HISTORY, spread, with_overlay
from ballast_operator.specs.meta import Owner, child, content_hash, with_spec_hash
from ballast_operator.specs.security import container_security, pod_security
from ballast_operator.specs.token_mount import token_mount, token_volume

PRE_STOP_S: Final = 5
"""Seconds in which Services and Envoys learn that the pod ends, before the gateway stops accepting."""
SLACK_S: Final = 8
"""Seconds for all else before the kubelet kills what is left."""

_SCRAPED: Final = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(names.PORT_ADMIN),
    "prometheus.io/path": "/metrics",
}


def gateway_deployment(
    owner: Owner,
    gateway: GatewaySpec,
    settings: GatewaySettings,
    defaults: GatewayDefaults,
    *,
    engine_nodes: Sequence[Mapping[str, str]] = (),
) -> Manifest:
    """Deployment of the gateway. A change of its settings rolls it only where running gateways cannot take it.

    `engine_nodes`: labels of the nodes that engines select; gateways prefer others.
    """
    name, match = names.gateway_object_name(owner.name), names.gateway_match_labels(owner.name)
    template: Manifest = {
        "metadata": {
            "labels": names.common_labels(owner.name, "gateway"),
            "annotations": {
                names.ANNOTATION_CONFIG_HASH: content_hash(restarting_part(settings)),
                names.ANNOTATION_POD_API: str(names.PORT_POD_API),
                **(_SCRAPED if defaults.scrape_annotations else {}),
            },
        },
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _grace_s(settings.limits),
            "securityContext": pod_security(),
            "topologySpreadConstraints": [spread(match)],
            **_away_from(engine_nodes),
            **pull_secrets(defaults),
            "containers": [_container(gateway, defaults)],
            "volumes": [
                {"name": "config", "configMap": {"name": name}},
                {"name": "tmp", "emptyDir": {}},
                token_volume(owner.name),
            ],
        },
    }
    deployment = child(
        DEPLOYMENT,
        owner,
        name,
        "gateway",
        spec={
            "replicas": gateway.replicas,
            "revisionHistoryLimit": REVISION_HISTORY,
            "selector": {"matchLabels": match},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": with_overlay(template, gateway.template),
        },
    )
    return with_spec_hash(deployment)


def _away_from(nodes: Sequence[Mapping[str, str]]) -> Manifest:
    """Nodes with these labels have GPUs, which gateways do not use: the last choice."""
    labels = sorted({label for selector in nodes for label in selector.items()})
    if not labels:
        return {}
    preferred = [
        {
            "weight": 100,
            "preference": {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]},
        }
        for key, value in labels
    ]
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


def _grace_s(limits: Limits) -> int:
    return PRE_STOP_S + math.ceil(limits.longest_drain_s) + SLACK_S


def _container(gateway: GatewaySpec, defaults: GatewayDefaults) -> Manifest:
    return {
        "name": names.GATEWAY_CONTAINER,
        **ballast_image(gateway, defaults),
        "command": ["ballast"],
        "args": ["gateway", "--config", f"{names.GATEWAY_CONFIG_DIR}/{names.GATEWAY_CONFIG_FILE}"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        ],
        "ports": [{"name": port, "containerPort": number, "protocol": "TCP"} for port, number in _ports(gateway)],
        "resources": {"requests": {**names.GATEWAY_REQUESTS}},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "securityContext": container_security(read_only=True),
        "volumeMounts": [
            {"name": "config", "mountPath": names.GATEWAY_CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            token_mount(),
        ],
        "startupProbe": _probe("/healthz", period_s=1, failures=STARTS_WITHIN_S),
        "readinessProbe": _probe("/readyz", period_s=2, failures=2),
        "livenessProbe": _probe("/healthz", period_s=10, failures=3),
    }


def _ports(gateway: GatewaySpec) -> list[tuple[str, int]]:
    ports = []
    if gateway.face.serves_proxy:
        ports.append(("http", names.PORT_PROXY))
    if gateway.face.serves_picker:
        ports += [("ext-proc", names.PORT_EXT_PROC), ("grpc-health", names.PORT_GRPC_HEALTH)]
    return [*ports, ("admin", names.PORT_ADMIN), ("pod-api", names.PORT_POD_API)]


def _probe(path: str, *, period_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "admin"},
        "periodSeconds": period_s,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
