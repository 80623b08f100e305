"""Services: one per pool, the gateway's for clients, the gateway's for scrapers, and all engines for an Envoy."""

from __future__ import annotations

from typing import Final

from ballast_api import names
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import SERVICE, Manifest
from ballast_operator.specs.meta import Owner, child, with_labels

PORT_CLIENTS: Final = 80
"""Port of the gateway's Service for the OpenAI API."""
ADMIN_SUFFIX: Final = "admin"
ENGINES_SUFFIX: Final = "engines"


def pool_service(owner: Owner, spec: ServingPoolSpec, pool: PoolSpec) -> Manifest:
    """Headless: its DNS name gives the ready engines of one pool."""
    service = child(
        SERVICE,
        owner,
        names.pool_object_name(owner.name, pool.name),
        "engine",
        spec={
            "clusterIP": "None",
            "selector": names.engine_match_labels(owner.name, pool.name),
            "ports": [_port("http", spec.engine.port, spec.engine.port, "http")],
        },
    )
    return with_labels(service, names.engine_labels(owner.name, pool.name, names.core_role(pool.role)))


def engines_service(owner: Owner, spec: ServingPoolSpec) -> Manifest:
    """Every engine of the ServingPool: the endpoints among which the picker chooses for an Envoy."""
    return child(
        SERVICE,
        owner,
        engines_service_name(owner.name),
        "engine",
        spec={
            "clusterIP": "None",
            "selector": {names.LABEL_SERVING_POOL: owner.name, names.APP_COMPONENT: "engine"},
            "ports": [_port("http", spec.engine.port, spec.engine.port, "http")],
        },
    )


def gateway_service(owner: Owner, spec: ServingPoolSpec) -> Manifest:
    """What clients (and, for the picker face, an Envoy) reach. No admin port: it is nothing for clients."""
    ports = []
    if spec.gateway.face.serves_proxy:
        ports.append(_port("http", PORT_CLIENTS, "http", "http"))
    if spec.gateway.face.serves_picker:
        ports.append(_port("ext-proc", names.PORT_EXT_PROC, "ext-proc", "kubernetes.io/h2c"))
    asked = spec.gateway.service
    service = child(
        SERVICE,
        owner,
        names.gateway_object_name(owner.name),
        "gateway",
        spec={"type": asked.type, "selector": names.gateway_match_labels(owner.name), "ports": ports},
    )
    if asked.annotations:
        service["metadata"]["annotations"] = dict(asked.annotations)
    return service


def gateway_admin_service(owner: Owner) -> Manifest:
    """Headless: metrics and admin API of every gateway pod, ready or not."""
    return child(
        SERVICE,
        owner,
        gateway_admin_service_name(owner.name),
        "gateway",
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.gateway_match_labels(owner.name),
            "ports": [_port("admin", names.PORT_ADMIN, "admin", "http")],
        },
    )


def gateway_admin_service_name(serving_pool: str) -> str:
    """Name of the Service for metrics and the admin API."""
    return names.child_name(serving_pool, f"{names.GATEWAY_POOL_SEGMENT}-{ADMIN_SUFFIX}")


def engines_service_name(serving_pool: str) -> str:
    """Name of the Service over all engines."""
    return names.child_name(serving_pool, f"{names.GATEWAY_POOL_SEGMENT}-{ENGINES_SUFFIX}")


def _port(name: str, port: int, target: str | int, app_protocol: str) -> Manifest:
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP", "appProtocol": app_protocol}
