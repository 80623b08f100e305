"""Objects that attach the pool to a Gateway: HTTPRoute, InferencePool, and Envoy Gateway's two policies.

`ballast_operator.planning.routing` decides which of them a ServingPool needs. Why the policies are as they are, with
figures: docs/picker/failures.md.
"""

from __future__ import annotations

import json
from typing import Final

from ballast_api import names, wire_names
from ballast_api.serving_pool import ServingPoolSpec
from ballast_operator.kinds import EXTENSION_POLICY, HTTP_ROUTE, INFERENCE_POOL, TRAFFIC_POLICY, Manifest
from ballast_operator.specs.meta import Owner, child, with_spec_hash
from ballast_operator.specs.services import PORT_CLIENTS, engines_service_name

MESSAGE_TIMEOUT: Final = f"{names.PICKER_MESSAGE_TIMEOUT_S}s"
"""Envoy Gateway's default of 200 ms would fail requests that the picker holds until an endpoint has room."""
MOST_STREAMS: Final = 65_536
"""Above what pickers admit: beyond `limits.maxInFlight` they answer 429 and say why, while Envoy's own limit of 1,024
would fail requests without a word."""
FALLBACKS: Final = 2
"""Endpoints that the picker names after the first one: as many retries may follow."""
UNAVAILABLE: Final = {
    "error": {
        "message": "no endpoint picker answers; try again",
        "type": "service_unavailable",
        "param": None,
        "code": "picker-unavailable",
    }
}
"""What clients get where no picker can be asked."""


def backend_proxy(owner: Owner) -> Manifest:
    """Route to the gateway itself (proxy face)."""
    return {"group": "", "kind": "Service", "name": names.gateway_object_name(owner.name), "port": PORT_CLIENTS}


def backend_engines(owner: Owner, spec: ServingPoolSpec) -> Manifest:
    """Route to the engines; Envoy Gateway's policies let the picker choose among them."""
    return {"group": "", "kind": "Service", "name": engines_service_name(owner.name), "port": spec.engine.port}


def backend_inference_pool(owner: Owner) -> Manifest:
    """Route to the InferencePool; a Gateway that implements GIE asks its picker."""
    group = INFERENCE_POOL.api_version.partition("/")[0]
    return {"group": group, "kind": INFERENCE_POOL.kind, "name": inference_pool_name(owner.name)}


def http_route(owner: Owner, spec: ServingPoolSpec, backend: Manifest) -> Manifest:
    """The OpenAI API, and nothing else that engines serve, at the parents' address."""
    gateway = spec.gateway
    route = child(
        HTTP_ROUTE,
        owner,
        http_route_name(owner.name),
        "gateway",
        spec={
            "parentRefs": [parent.dump() for parent in gateway.parent_refs],
            **({"hostnames": list(gateway.hostnames)} if gateway.hostnames else {}),
            "rules": [
                {
                    "matches": _matches(spec),
                    "backendRefs": [backend],
                    # No limit: an answer streams for as long as it has tokens. Envoy would cut it after 15 s.
                    "timeouts": {"request": "0s"},
                }
            ],
        },
    )
    return with_spec_hash(route)


def _matches(spec: ServingPoolSpec) -> list[Manifest]:
    """One for each name of the model where it counts; a request has to match one of them."""
    path = {"path": {"type": "PathPrefix", "value": "/v1"}}
    headers = [(each.name, each.value) for each in spec.gateway.match.headers]
    models = spec.model.all_served_names() if spec.gateway.match.by_model else ()
    asked = [[*headers, (wire_names.MODEL_NAME, model)] for model in models] or [headers]
    return [
        {**path, "headers": [{"type": "Exact", "name": name, "value": value} for name, value in each]} if each else path
        for each in asked
    ]


def inference_pool(owner: Owner, spec: ServingPoolSpec) -> Manifest:
    """The engines with our picker, for Gateways that implement GIE."""
    picker = {
        "group": "",
        "kind": "Service",
        "name": names.gateway_object_name(owner.name),
        "port": {"number": names.PORT_EXT_PROC},
        "failureMode": "FailClose",
    }
    selector = {names.LABEL_SERVING_POOL: owner.name, names.APP_COMPONENT: "engine"}
    return child(
        INFERENCE_POOL,
        owner,
        inference_pool_name(owner.name),
        "gateway",
        spec={
            "selector": {"matchLabels": selector},
            "targetPorts": [{"number": spec.engine.port}],
            "endpointPickerRef": picker,
        },
    )


def extension_policy(owner: Owner) -> Manifest:
    """Envoy Gateway: ask the picker over ext_proc for every request of the route."""
    return child(
        EXTENSION_POLICY,
        owner,
        names.gateway_object_name(owner.name),
        "gateway",
        spec={
            "targetRefs": [_route_target(owner)],
            "extProc": [
                {
                    "backendRefs": [
                        {
                            "group": "",
                            "kind": "Service",
                            "name": names.gateway_object_name(owner.name),
                            "port": names.PORT_EXT_PROC,
                        }
                    ],
                    "backendSettings": _picker_settings(),
                    # Not the response: a stream that a picker sees breaks with it, and freezes with it.
                    "processingMode": {"request": {"body": "FullDuplexStreamed"}},
                    "messageTimeout": MESSAGE_TIMEOUT,
                    "metadata": {
                        "accessibleNamespaces": [wire_names.METADATA_NAMESPACE, wire_names.SUBSET_NAMESPACE],
                        "writableNamespaces": [wire_names.METADATA_NAMESPACE],
                    },
                }
            ],
        },
    )


def traffic_policy(owner: Owner, *, agents: bool) -> Manifest:
    """Envoy Gateway: send the request to the endpoint in the picker's header, and say so where no picker answers.

    `agents`: every pod that decodes has one. Then it is a pod that has died, not an engine that the request may have
    broken, that takes a connection away before the answer begins: another agent starts over.
    """
    triggers = ["connect-failure", "refused-stream", *(["reset"] if agents else [])]
    override = {"extractFrom": [{"header": wire_names.DESTINATION}]}
    unavailable = {
        "source": "Local",  # engines' own answers pass
        "match": {"statusCodes": [{"type": "Value", "value": 500}]},
        "response": {
            "statusCode": 503,
            "contentType": "application/json",
            "body": {"type": "Inline", "inline": json.dumps(UNAVAILABLE)},
        },
    }
    return child(
        TRAFFIC_POLICY,
        owner,
        names.gateway_object_name(owner.name),
        "gateway",
        spec={
            "targetRefs": [_route_target(owner)],
            "loadBalancer": {"type": "RoundRobin", "endpointOverride": override},
            # To the next endpoint that the picker names.
            "retry": {"numRetries": FALLBACKS, "retryOn": {"triggers": triggers}},
            "responseOverride": [unavailable],
        },
    )


def _picker_settings() -> Manifest:
    """One picker of several may die or hang: requests go to another one, and it is left alone until it is well."""
    return {
        # A request is not answered before it is routed, so all of it can be asked again.
        "retry": {
            "numRetries": 3,
            "retryOn": {"triggers": ["connect-failure", "refused-stream", "reset", "unavailable"]},
            "perRetry": {"backOff": {"baseInterval": "25ms", "maxInterval": "250ms"}},
        },
        # Without an answer to its PING a connection is closed, and its requests are asked again: a hung picker keeps
        # its connections, and there is no time limit on a body in full duplex.
        "http2": {"connectionKeepalive": {"interval": "1s", "timeout": "500ms"}},
        "healthCheck": {
            "active": {
                "type": "GRPC",
                "grpc": {"service": "readiness"},
                "interval": "500ms",
                "timeout": "500ms",
                "unhealthyThreshold": 2,
                "healthyThreshold": 1,
                "overrides": {"port": names.PORT_GRPC_HEALTH},
            },
            "passive": {
                # A connection that fails tells enough; large bodies, which cannot be asked again, find that out last.
                "splitExternalLocalOriginErrors": True,
                "consecutiveLocalOriginFailures": 1,
                "consecutive5XxErrors": 5,
                "interval": "1s",
                "baseEjectionTime": "5s",
                "maxEjectionPercent": 50,
            },
            # With none in good health all are asked: a picker that is not ready says why.
            "panicThreshold": 1,
        },
        "circuitBreaker": {
            "maxConnections": MOST_STREAMS,
            "maxPendingRequests": MOST_STREAMS,
            "maxParallelRequests": MOST_STREAMS,
            "maxParallelRetries": MOST_STREAMS,
        },
        "timeout": {"tcp": {"connectTimeout": "1s"}},
    }


def http_route_name(serving_pool: str) -> str:
    """Name of the HTTPRoute."""
    return names.gateway_object_name(serving_pool)


def inference_pool_name(serving_pool: str) -> str:
    """Name of the InferencePool."""
    return names.gateway_object_name(serving_pool)


def _route_target(owner: Owner) -> Manifest:
    group = HTTP_ROUTE.api_version.partition("/")[0]
    return {"group": group, "kind": HTTP_ROUTE.kind, "name": http_route_name(owner.name)}
