"""How clients get in, as a table: parents and faces in, routes, their policies and Services out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballast_api.loading import parse_settings
from ballast_operator.kinds import (
    GATEWAY,
    HTTP_ROUTE,
    INFERENCE_POOL,
    OPTIONAL_CHILDREN,
    Kind,
    Manifest,
)
from ballast_operator.planning.plan import plan
from tests.support.operator_builders import (
    NAMESPACE,
    UID,
    all_ready,
    observed,
    serving_pool,
)
from tests.support.operator_plans import ENVOY_GATEWAY, PARENT, condition, find, message

GIE = frozenset({GATEWAY, HTTP_ROUTE, INFERENCE_POOL})


@pytest.mark.parametrize(
    ("controllers", "objects_of", "backend"),
    [
        pytest.param({"gateway.envoyproxy.io/gatewayclass-controller"}, True, "Service", id="envoy-gateway"),
        pytest.param({"gateway.envoyproxy.io/other", "example.com/c"}, True, "Service", id="one-of-two"),
        pytest.param(None, True, "Service", id="not-known"),
        pytest.param({"istio.io/gateway-controller"}, False, "InferencePool", id="another"),
    ],
)
def test_envoy_gateways_policies_are_for_its_own_gateways(
    controllers: set[str] | None, objects_of: bool, backend: str
) -> None:
    """Its CRDs may be installed for other Gateways than the parents; those get the InferencePool."""
    spec = serving_pool(gateway={"face": "Picker", **PARENT})
    known = None if controllers is None else frozenset(controllers)
    result = plan(observed(spec, optional_kinds=ENVOY_GATEWAY | GIE, controllers=known))
    assert (
        bool({"EnvoyExtensionPolicy", "BackendTrafficPolicy"} & {item["kind"] for item in result.apply}) is objects_of
    )
    route = find(result, "HTTPRoute", "chat-gateway")
    assert route["spec"]["rules"][0]["backendRefs"][0]["kind"] == backend


def test_several_serving_pools_share_a_gateway_by_host_header_or_model() -> None:
    """One match for each served name; what is left out is not asked for."""
    model = {"name": "org/model", "servedNames": ["big", "big-v2"]}
    match = {"headers": [{"name": "x-team", "value": "a"}], "byModel": True}
    gateway = {"hostnames": ["chat.example.com"], "match": match, **PARENT}
    found = plan(observed(serving_pool(model=model, gateway=gateway), optional_kinds=ENVOY_GATEWAY))
    route = find(found, "HTTPRoute", "chat-gateway")["spec"]
    assert route["hostnames"] == ["chat.example.com"]
    asked = [{each["name"]: each["value"] for each in one["headers"]} for one in route["rules"][0]["matches"]]
    assert asked == [{"x-team": "a", "x-gateway-model-name": name} for name in ("big", "big-v2")]
    plain = find(
        plan(observed(serving_pool(gateway=PARENT), optional_kinds=ENVOY_GATEWAY)), "HTTPRoute", "chat-gateway"
    )
    assert plain["spec"]["rules"][0]["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    assert "hostnames" not in plain["spec"]


def test_what_is_of_a_route_that_nobody_asked_for_is_said() -> None:
    """An adopted fleet may have its host names before it has a parent."""
    match = {"headers": [{"name": "x-team", "value": "a"}]}
    for gateway in ({"hostnames": ["chat.example.com"]}, {"match": match}, {"match": {"byModel": True}}):
        (said,) = plan(observed(serving_pool(gateway=gateway), optional_kinds=ENVOY_GATEWAY)).remarks
        assert "no effect without gateway.parentRefs" in said
        attached = plan(observed(serving_pool(gateway={**gateway, **PARENT}), optional_kinds=ENVOY_GATEWAY))
        assert attached.remarks == ()


def route_with(reason: str, *, generation: int = 1, kind: str = "Accepted", status: str = "False") -> Manifest:
    """Our HTTPRoute, as a Gateway's controller has judged it."""
    said = {"type": kind, "status": status, "reason": reason, "message": "no", "observedGeneration": generation}
    parent = {"parentRef": {"name": "front"}, "controllerName": "x", "conditions": [said]}
    metadata = {
        "name": "chat-gateway",
        "namespace": NAMESPACE,
        "uid": "route",
        "generation": 1,
        "ownerReferences": [{"kind": "ServingPool", "name": "chat", "uid": UID, "controller": True}],
    }
    api = HTTP_ROUTE.api_version
    return {"apiVersion": api, "kind": "HTTPRoute", "metadata": metadata, "spec": {}, "status": {"parents": [parent]}}


@pytest.mark.parametrize(
    ("face", "route", "expected"),
    [
        ("Proxy", route_with("NotAllowedByListeners"), ("True", "True", "False")),
        ("Picker", route_with("NotAllowedByListeners"), ("False", "True", "False")),
        ("Picker", route_with("BackendNotFound", kind="ResolvedRefs"), ("True", "True", "False")),
        ("Picker", route_with("Old", generation=0), ("False", "False", "True")),
        ("Picker", route_with("Accepted", status="True"), ("True", "False", "True")),
    ],
    ids=["proxy", "picker", "refs", "of-an-older-route", "accepted"],
)
def test_what_gateways_say_of_the_route_is_said(face: str, route: Manifest, expected: tuple[str, ...]) -> None:
    """Available (where requests come by a Gateway only), Degraded and ResolvedRefs, with the Gateway and its reason."""
    spec = serving_pool(gateway={"face": face, **PARENT})
    situation = observed(spec, optional_kinds=ENVOY_GATEWAY, children=(*all_ready(), route))
    assert tuple(condition(situation, kind)[0] for kind in ("Available", "Degraded", "ResolvedRefs")) == expected
    if expected[1] == "True":
        said = route["status"]["parents"][0]["conditions"][0]["reason"]
        assert f"HTTPRoute chat-gateway at Gateway front: {said}: no" in message(situation, "Degraded")


@pytest.mark.parametrize(
    ("face", "available", "expected"),
    [
        pytest.param("Proxy", frozenset(), {}, id="no-gateway-api"),
        pytest.param("Proxy", GIE, {"HTTPRoute": "chat-gateway"}, id="proxy"),
        pytest.param(
            "Picker",
            ENVOY_GATEWAY,
            {
                "HTTPRoute": "chat-gateway-engines",
                "EnvoyExtensionPolicy": None,
                "BackendTrafficPolicy": None,
            },
            id="picker-behind-envoy-gateway",
        ),
        pytest.param("Picker", GIE, {"HTTPRoute": "chat-gateway", "InferencePool": None}, id="picker-behind-gie"),
        pytest.param(
            "Both",
            ENVOY_GATEWAY | GIE,
            {
                "HTTPRoute": "chat-gateway-engines",
                "EnvoyExtensionPolicy": None,
                "BackendTrafficPolicy": None,
                "InferencePool": None,
            },
            id="both",
        ),
        pytest.param("Picker", frozenset({GATEWAY, HTTP_ROUTE}), {}, id="no-envoy-that-asks-the-picker"),
    ],
)
def test_a_parent_is_routed_by_what_the_cluster_has(
    face: str, available: frozenset[Kind], expected: dict[str, str | None]
) -> None:
    """Kinds to the name of the route's backend."""
    situation = observed(serving_pool(gateway={"face": face, **PARENT}), optional_kinds=available)
    routes = {
        item["kind"]: item["spec"]["rules"][0]["backendRefs"][0]["name"] if item["kind"] == "HTTPRoute" else None
        for item in plan(situation).apply
        if item["kind"] in {kind.kind for kind in OPTIONAL_CHILDREN}
    }
    assert routes == expected
    missing_api = "HTTPRoute" not in expected
    assert condition(situation, "Degraded") == (("True", "APINotInstalled") if missing_api else ("False", "AsExpected"))


@pytest.mark.parametrize(
    ("face", "ports"),
    [("Proxy", {"http": 80}), ("Picker", {"ext-proc": 9002}), ("Both", {"http": 80, "ext-proc": 9002})],
)
def test_clients_see_the_ports_of_the_face_and_never_the_admin_port(face: str, ports: dict[str, int]) -> None:
    """The admin API has a Service of its own."""
    result = plan(observed(serving_pool(gateway={"face": face})))
    service = find(result, "Service", "chat-gateway")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    admin = find(result, "Service", "chat-gateway-admin")
    assert [port["port"] for port in admin["spec"]["ports"]] == [9090]


@pytest.mark.parametrize(
    ("face", "available", "settings", "told"),
    [
        pytest.param("Picker", ENVOY_GATEWAY, {}, 2, id="envoy-gateway"),
        pytest.param("Picker", ENVOY_GATEWAY, {"picker": {"fallbacks": 0}}, 0, id="set-by-hand"),
        pytest.param("Picker", ENVOY_GATEWAY, {"logLevel": "debug"}, 2, id="other-settings"),
        pytest.param("Picker", GIE, {}, 0, id="an-unknown-proxy"),
        pytest.param("Proxy", ENVOY_GATEWAY, {}, 0, id="proxy"),
    ],
)
def test_pickers_name_fall_backs_where_envoy_gateway_goes_to_them(
    face: str, available: frozenset[Kind], settings: dict[str, Any], told: int
) -> None:
    """As many as its retries."""
    gateway = {"face": face, "settings": settings, **PARENT}
    made = plan(observed(serving_pool(gateway=gateway), optional_kinds=available))
    config = find(made, "ConfigMap", "chat-gateway")
    (text,) = config["data"].values()
    assert parse_settings(text).picker.fallbacks == told
    if face == "Picker" and available == ENVOY_GATEWAY:
        policy = find(made, "BackendTrafficPolicy", "chat-gateway")["spec"]
        triggers = ["connect-failure", "refused-stream", "reset"]
        assert policy["retry"] == {"numRetries": 2, "retryOn": {"triggers": triggers}}


def test_without_agents_only_what_no_engine_has_seen_is_sent_again() -> None:
    """An engine that broke off may have been broken by the request: it must not get to the next one."""
    pool = serving_pool(gateway={"face": "Picker", **PARENT}, engine={"image": "e:1", "agent": "Never"})
    policy = find(plan(observed(pool, optional_kinds=ENVOY_GATEWAY)), "BackendTrafficPolicy", "chat-gateway")["spec"]
    assert policy["retry"]["retryOn"]["triggers"] == ["connect-failure", "refused-stream"]


def test_envoy_asks_another_picker_where_one_dies_and_shows_none_of_them_a_response() -> None:
    """What docs/picker.md recommends, in Envoy Gateway's words."""
    made = plan(observed(serving_pool(gateway={"face": "Picker", **PARENT}), optional_kinds=ENVOY_GATEWAY))
    (ext_proc,) = find(made, "EnvoyExtensionPolicy", "chat-gateway")["spec"]["extProc"]
    assert ext_proc["processingMode"] == {"request": {"body": "FullDuplexStreamed"}}
    settings = ext_proc["backendSettings"]
    assert settings["retry"]["numRetries"] == 3
    assert settings["healthCheck"]["active"]["overrides"] == {"port": 9003}
    assert settings["http2"]["connectionKeepalive"] == {"interval": "1s", "timeout": "500ms"}
    assert settings["circuitBreaker"]["maxParallelRequests"] > 10_000
    (override,) = find(made, "BackendTrafficPolicy", "chat-gateway")["spec"]["responseOverride"]
    assert override["source"] == "Local"
    assert json.loads(override["response"]["body"]["inline"])["error"]["code"] == "picker-unavailable"
