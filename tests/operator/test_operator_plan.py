"""Plan and verdict as tables: situation in, objects and conditions out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from ballast_api.gateway_settings import Limits
from ballast_api.loading import parse_settings
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_operator.kinds import (
    DEPLOYMENT,
    EXTENSION_POLICY,
    GATEWAY,
    HTTP_ROUTE,
    INFERENCE_POOL,
    OPTIONAL_CHILDREN,
    SERVICE,
    TRAFFIC_POLICY,
    Kind,
    Manifest,
)
from ballast_operator.observed import Observed
from ballast_operator.outcome import Outcome, Refusal
from ballast_operator.planning.plan import plan
from ballast_operator.planning.planned import Plan
from ballast_operator.status.verdict import verdict
from ballast_sim.engine_sim.options import KvEventsConfig, kv_events_config
from tests.support.operator_builders import (
    DEFAULTS,
    NAMESPACE,
    UID,
    all_ready,
    deployment,
    judged,
    objective,
    objectives,
    observed,
    pod,
    policy,
    pool,
    profile,
    profiles,
    serving_pool,
    status_of,
)

ENVOY_GATEWAY = frozenset({GATEWAY, HTTP_ROUTE, EXTENSION_POLICY, TRAFFIC_POLICY})
GIE = frozenset({GATEWAY, HTTP_ROUTE, INFERENCE_POOL})
PARENT = {"parentRefs": [{"name": "front"}]}
FLEXIBLE = (pool("all", "Flexible", replicas=4),)
PROMPT_CUTS = {"type": "libra", "parameters": {"cuts": "prompt"}}
OPEN = {"type": "open"}
READS_PARTS = {
    "image": "registry.test/engine:1",
    "kvConnector": {"config": {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}},
}
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


def test_a_serving_pool_becomes_its_objects_in_the_order_in_which_pods_need_them() -> None:
    """Identity, settings and Services come before the pods that use them."""
    assert objects(plan(observed())) == [
        "Secret/chat-gateway-token",
        "Lease/chat-gateway",
        "ServiceAccount/chat-gateway",
        "Role/chat-gateway",
        "RoleBinding/chat-gateway",
        "ConfigMap/chat-gateway",
        "ConfigMap/chat-profiles",
        "Service/chat-decode",
        "Service/chat-gateway",
        "Service/chat-gateway-admin",
        "Service/chat-prefill",
        "PodDisruptionBudget/chat-decode",
        "PodDisruptionBudget/chat-gateway",
        "PodDisruptionBudget/chat-prefill",
        "NetworkPolicy/chat-gateway",
        "Deployment/chat-decode",
        "Deployment/chat-gateway",
        "Deployment/chat-prefill",
    ]


def test_every_object_belongs_to_the_serving_pool_and_says_so_in_its_labels() -> None:
    """One controller reference each; the label by which children are found."""
    for item in plan(observed(serving_pool(gateway={"face": "Both", **PARENT}), optional_kinds=ENVOY_GATEWAY)).apply:
        metadata = item["metadata"]
        assert [(ref["kind"], ref["controller"]) for ref in metadata["ownerReferences"]] == [("ServingPool", True)]
        assert metadata["labels"]["serving.ballast.dev/serving-pool"] == "chat"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "ballast-operator"


@pytest.mark.parametrize(
    ("role", "label", "llmd", "kv_role"),
    [
        pytest.param("Prefill", "prefill", "prefill", "kv_producer", id="prefill"),
        pytest.param("Decode", "decode", "decode", "kv_consumer", id="decode"),
        pytest.param("Flexible", "flexible", "prefill-decode", "kv_both", id="flexible"),
    ],
)
def test_a_role_is_in_labels_environment_and_connector(role: str, label: str, llmd: str, kv_role: str) -> None:
    """The gateway places by label, vLLM by kv_role."""
    spec = serving_pool(pool("it", role), pool("flex", "Flexible"))
    result = plan(observed(spec))
    template = find(result, "Deployment", "chat-it")["spec"]["template"]
    assert template["metadata"]["labels"]["serving.ballast.dev/role"] == label
    assert template["metadata"]["labels"]["llm-d.ai/role"] == llmd
    assert {"name": "BALLAST_ROLE", "value": label} in engine(result, "chat-it")["env"]
    arguments = engine(result, "chat-it")["args"]
    config = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    assert config == {"kv_connector": "NixlConnector", "kv_role": kv_role}


def test_the_engine_gets_vllms_command_line_with_the_users_arguments_last() -> None:
    """The last one wins in vLLM."""
    spec = serving_pool(
        model={"name": "org/model", "servedNames": ["big", "small"], "maxModelLen": 4096},
        engine={"image": "e:1", "command": ["ballast", "engine-sim"], "args": ["--seed", "7"], "port": 8200},
    )
    container = engine(plan(observed(spec)), "chat-decode")
    assert container["command"] == ["ballast", "engine-sim"]
    assert container["args"][:6] == ["serve", "org/model", "--host", "0.0.0.0", "--port", "8200"]
    assert container["args"][6:9] == ["--served-model-name", "big", "small"]
    assert container["args"][-4:] == ["--max-model-len", "4096", "--seed", "7"]


def test_a_pool_that_listens_to_kv_events_has_engines_that_publish_where_its_gateway_listens() -> None:
    """One fact: ports and topic of the gateway's settings are in the engines' arguments. Off, nothing is."""
    quiet = engine(plan(observed(serving_pool())), "chat-decode")
    assert not any("kv-events" in argument for argument in quiet["args"])
    settings = {"kvEvents": {"enabled": True, "port": 7001, "replayPort": 7101, "topic": "kv"}}
    made = plan(observed(serving_pool(gateway={"settings": settings})))
    publishing = engine(made, "chat-decode")
    config = json.loads(publishing["args"][publishing["args"].index("--kv-events-config") + 1])
    assert (config["endpoint"], config["replay_endpoint"], config["topic"]) == ("tcp://*:7001", "tcp://*:7101", "kv")
    ports = {port["name"]: port["containerPort"] for port in publishing["ports"]}
    assert (ports["kv-events"], ports["kv-replay"]) == (7001, 7101)
    understood = kv_events_config(publishing["args"][publishing["args"].index("--kv-events-config") + 1])
    assert understood == KvEventsConfig(7001, 7101, "kv")


@pytest.mark.parametrize(
    ("gpus", "tensor_parallel", "expected"), [(2, None, "2"), (2, 4, "4"), (1, None, "1")], ids=str
)
def test_gpus_come_from_the_profile_unless_the_pool_says_otherwise(
    gpus: int, tensor_parallel: int | None, expected: str
) -> None:
    """Requested as the profile's resource, and passed to vLLM."""
    more: dict[str, Any] = {} if tensor_parallel is None else {"tensorParallelSize": tensor_parallel}
    spec = serving_pool(pool("it", "Flexible", **more))
    found = {"h20": profile("h20", gpus=gpus, resourceName="example.com/accelerator")}
    container = engine(plan(observed(spec, profiles=found)), "chat-it")
    requests = {"cpu": str(2 + int(expected)), "memory": f"{8 * int(expected)}Gi"}
    assert container["resources"] == {"limits": {"example.com/accelerator": expected}, "requests": requests}
    assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == expected


def test_pods_run_on_the_profiles_nodes_and_find_its_numbers_in_a_file() -> None:
    """engine-sim takes its timing from there; prices and node labels are none of its business."""
    result = plan(observed())
    spec = find(result, "Deployment", "chat-prefill")["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"hardware": "a100"}
    environment = {entry["name"]: entry.get("value") for entry in engine(result, "chat-prefill")["env"]}
    folder, _, file = str(environment["BALLAST_PROFILE"]).rpartition("/")
    mounted = {each["mountPath"]: each["name"] for each in engine(result, "chat-prefill")["volumeMounts"]}
    volume = next(each["configMap"] for each in spec["volumes"] if each["name"] == mounted[folder])
    assert (volume["name"], volume["items"]) == ("chat-profiles", [{"key": "a100", "path": file}])
    numbers = json.loads(find(result, "ConfigMap", "chat-profiles")["data"]["a100"])
    assert numbers["dMsPerToken"] == 0.1
    assert not numbers.keys() & {"nodeSelector", "costPerHour", "resourceName"}


def test_a_pool_may_have_an_image_arguments_and_environment_of_its_own() -> None:
    """They stand after the engine's and win; the other pool keeps the engine's."""
    own: dict[str, Any] = {
        "image": "registry.test/amd:1",
        "args": ["--max-num-seqs", "9"],
        "env": [{"name": "A", "value": "pool"}, {"name": "HOME", "value": "/x"}],
    }
    pools = (pool("prefill", "Prefill", hardware="a100"), pool("decode", "Decode", **own))
    engines = {
        "image": "registry.test/engine:1",
        "args": ["--max-num-seqs", "8"],
        "env": [{"name": "A", "value": "all"}, {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "t"}}}],
    }
    result = plan(observed(serving_pool(*pools, engine=engines)))
    decode, prefill = engine(result, "chat-decode"), engine(result, "chat-prefill")
    assert (decode["image"], prefill["image"]) == ("registry.test/amd:1", "registry.test/engine:1")
    assert decode["args"][-4:] == ["--max-num-seqs", "8", "--max-num-seqs", "9"]
    assert prefill["args"][-2:] == ["--max-num-seqs", "8"]
    for container, a, home in ((decode, "pool", "/x"), (prefill, "all", "/home/engine")):
        variables = {each["name"]: each for each in container["env"]}
        assert (variables["A"]["value"], variables["HOME"]["value"]) == (a, home)
        assert variables["T"]["valueFrom"] == {"secretKeyRef": {"name": "s", "key": "t"}}


@pytest.mark.parametrize(
    ("source", "volume", "read_only", "home"),
    [
        ({"claim": "weights"}, {"persistentVolumeClaim": {"claimName": "weights"}}, True, None),
        ({"image": {"reference": "r/m:1"}}, {"image": {"reference": "r/m:1"}}, True, None),
        ({"cache": "hub", "mountPath": "/c"}, {"persistentVolumeClaim": {"claimName": "hub"}}, None, "/c"),
    ],
    ids=["claim", "image", "cache"],
)
def test_weights_come_from_a_volume(
    source: dict[str, Any], volume: dict[str, Any], read_only: bool | None, home: str | None
) -> None:
    """Mounted in every engine; a cache is written, and found by Hugging Face's library."""
    result = plan(observed(serving_pool(model={"name": "org/model", "volume": source})))
    for name in ("chat-prefill", "chat-decode"):
        spec = find(result, "Deployment", name)["spec"]["template"]["spec"]
        assert [each for each in spec["volumes"] if each["name"] == "model"] == [{"name": "model", **volume}]
        container = engine(result, name)
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "model"]
        assert (mount["mountPath"], mount.get("readOnly")) == (source.get("mountPath", "/models"), read_only)
        assert {each["name"]: each.get("value") for each in container["env"]}.get("HF_HOME") == home


@pytest.mark.parametrize("wanted", [True, False])
def test_gateways_are_annotated_for_a_prometheus_without_pod_monitors(wanted: bool) -> None:
    """As the administrator says; the port is the admin port."""
    situation = observed(gateway_defaults=replace(DEFAULTS, scrape_annotations=wanted))
    annotations = find(plan(situation), "Deployment", "chat-gateway")["spec"]["template"]["metadata"]["annotations"]
    scraped = {key: value for key, value in annotations.items() if key.startswith("prometheus.io/")}
    expected = {"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "prometheus.io/path": "/metrics"}
    assert scraped == (expected if wanted else {})


def test_the_admin_port_is_for_whom_the_administrator_names() -> None:
    """Every other port but the pod API's stays open; without names the admin port does, too."""
    peers = ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},)

    def sources(port: int, **settings: Any) -> list[Any]:
        rules = find(plan(observed(**settings)), "NetworkPolicy", "chat-gateway")["spec"]["ingress"]
        return [
            rule.get("from")
            for rule in rules
            for each in rule["ports"]
            if each["protocol"] == "TCP" and each["port"] <= port <= each.get("endPort", each["port"])
        ]

    engines = {"serving.ballast.dev/serving-pool": "chat", "app.kubernetes.io/component": "engine"}
    own = {"podSelector": {"matchLabels": engines}}  # pods ask whether they are empty
    assert sources(9090, admin_from=peers) == [[*peers, own]]
    assert sources(9090) == [None]
    for port in (1, 8000, 9003, 9005, 9089, 9091, 65535):
        assert sources(port, admin_from=peers) == [None]
    assert sources(9004, admin_from=peers) == sources(9004) != [None]


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


def test_an_edit_of_a_speed_restarts_no_engine() -> None:
    """Neither template nor revision change; the numbers go to gateways and to engine-sims that start later."""
    before = plan(observed())
    after = plan(observed(profiles={**profiles(), "h20": profile("h20", aMs=31.0, kvTokens=50_000, linkGbps=400.0)}))
    for name in ("chat-prefill", "chat-decode"):
        assert find(before, "Deployment", name) == find(after, "Deployment", name)
    assert find(before, "ConfigMap", "chat-profiles") != find(after, "ConfigMap", "chat-profiles")
    assert find(before, "ConfigMap", "chat-gateway") != find(after, "ConfigMap", "chat-gateway")


def test_what_vllm_has_options_for_comes_from_the_profile() -> None:
    """The engine does what gateways expect of it; the spec's own arguments stand last, and win."""
    numbers = {"blockSize": 64, "maxNumSeqs": 7, "maxNumBatchedTokens": 2048}
    found = {**profiles(), "h20": profile("h20", **numbers)}
    spec = serving_pool(engine={"image": "registry.test/engine:1", "args": ["--max-num-seqs", "9"]})
    arguments = engine(plan(observed(spec, profiles=found)), "chat-decode")["args"]
    given = [arguments[at + 1] for at, each in enumerate(arguments) if each in {"--block-size", "--max-num-seqs"}]
    assert given == ["64", "7", "9"]
    assert arguments[arguments.index("--max-num-batched-tokens") + 1] == "2048"


def test_pods_pass_pod_security_restricted() -> None:
    """What the standard asks of a pod and of each container."""
    result = plan(observed())
    for name in ("chat-prefill", "chat-decode", "chat-gateway"):
        spec = find(result, "Deployment", name)["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_an_engine_ends_after_the_gateway_has_learnt_of_it_and_with_time_for_its_requests() -> None:
    """The hook, then SIGTERM, then the engine's own time-out: all within the grace period."""
    found = plan(observed(serving_pool(scaleDown={"drainTimeoutS": 200})))
    container = engine(found, "chat-decode")
    grace = find(found, "Deployment", "chat-decode")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    command = container["lifecycle"]["preStop"]["exec"]["command"][-1].split()
    timeout = int(container["args"][container["args"].index("--shutdown-timeout") + 1])
    assert command[command.index("--most") + 1] == "200"
    assert 200 + timeout < grace
    assert command[-3:] == ["||", "sleep", "5"]
    never = engine(plan(observed(serving_pool(scaleDown={"drainTimeoutS": 0}))), "chat-decode")
    assert never["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}


def test_a_gateway_ends_with_time_for_its_streams() -> None:
    """preStop sleep, then SIGTERM, then the gateway's grace and drain: all within the grace period."""
    spec = find(plan(observed()), "Deployment", "chat-gateway")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    sleep_s, limits = container["lifecycle"]["preStop"]["sleep"]["seconds"], Limits()
    assert limits.drain_timeout_s == 300
    assert sleep_s > 0
    assert sleep_s + limits.drain_grace_s + limits.drain_timeout_s < limits.longest_drain_s + sleep_s
    assert sleep_s + limits.longest_drain_s < spec["terminationGracePeriodSeconds"]


def test_a_pool_sets_its_gateway() -> None:
    """What is set reaches the gateway's file, and nothing else; the pod's grace period follows the drain."""
    tuned = {
        "limits": {"drainTimeoutS": 40.0, "maxRetries": 4},
        "trust": {"tenantHeader": "x-team"},
        "corsOrigins": ["https://chat.example.org"],
        "logLevel": "debug",
    }
    planned = plan(observed(serving_pool(gateway={"settings": tuned})))
    text = find(planned, "ConfigMap", "chat-gateway")["data"]["gateway.yaml"]
    written = yaml.safe_load(text)
    assert {name: written[name] for name in tuned} == tuned
    assert not {"watch", "health", "streams", "scrape", "admin"} & written.keys()
    read = parse_settings(text)
    assert (read.limits.drain_timeout_s, read.limits.max_retries, read.limits.idle_timeout_s) == (40.0, 4, 300.0)
    spec = find(planned, "Deployment", "chat-gateway")["spec"]["template"]["spec"]
    default = find(plan(observed()), "Deployment", "chat-gateway")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == default["terminationGracePeriodSeconds"] - 260


def test_words_and_prices_of_a_profile_restart_nothing() -> None:
    """Only numbers that pods compute with reach their templates."""
    words: dict[str, Any] = {"hardware": "new words", "derivation": "measured", "costPerHour": 3.5}
    before, after = (
        plan(observed(profiles={**profiles("a100"), "h20": found}))
        for found in (profile("h20"), profile("h20", **words))
    )
    assert before.apply == after.apply


def test_scaling_changes_no_pod_template() -> None:
    """Otherwise an edit of replicas would restart every engine."""
    few, many = (plan(observed(serving_pool(pool("it", "Flexible", replicas=count)))) for count in (1, 9))
    one, nine = (find(result, "Deployment", "chat-it")["spec"] for result in (few, many))
    assert (one["replicas"], nine["replicas"]) == (1, 9)
    assert one["template"] == nine["template"]


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
    ("there", "expected"), [(None, 2), (1, 2), (4, 4), (9, 6)], ids=["new", "below", "within", "above"]
)
def test_autoscaling_keeps_what_is_there_within_its_bounds(there: int | None, expected: int) -> None:
    """Another controller may scale: the operator only clamps."""
    spec = serving_pool(pool("it", "Flexible", autoscaling={"minReplicas": 2, "maxReplicas": 6}))
    children = () if there is None else (deployment("chat-it", wanted=there),)
    assert find(plan(observed(spec, children=children)), "Deployment", "chat-it")["spec"]["replicas"] == expected


CONDITIONS: list[tuple[str, Observed, dict[str, tuple[str, str]]]] = [
    (
        "nothing-yet",
        observed(),
        {"Available": ("False", "PrefillNotReady"), "Progressing": ("True", "Scaling"), "SLOMet": ("Unknown", "NoSLO")},
    ),
    (
        "all-ready",
        observed(children=all_ready()),
        {
            "Available": ("True", "Ready"),
            "Progressing": ("False", "Complete"),
            "Degraded": ("False", "AsExpected"),
            "ResolvedRefs": ("True", "RefsResolved"),
        },
    ),
    (
        "one-of-each-is-enough-to-serve",
        observed(
            children=(
                deployment("chat-gateway"),
                deployment("chat-prefill", wanted=2, ready=1),
                deployment("chat-decode", wanted=4, ready=1),
            )
        ),
        {"Available": ("True", "Ready"), "Progressing": ("True", "Scaling")},
    ),
    (
        "no-decode",
        observed(children=(deployment("chat-prefill", wanted=2), deployment("chat-decode", wanted=4, ready=0))),
        {"Available": ("False", "DecodeNotReady")},
    ),
    (
        "no-gateway",
        observed(children=(deployment("chat-gateway", ready=0), *all_ready()[1:])),
        {"Available": ("False", "GatewayNotReady")},
    ),
    (
        "scaled-to-zero",
        observed(serving_pool(pool("p", "Prefill"), pool("d", "Decode", replicas=0)), children=all_ready()),
        {"Available": ("False", "PrefillNotReady")},
    ),
    (
        "decode-scaled-to-zero",
        observed(
            serving_pool(pool("p", "Prefill"), pool("d", "Decode", replicas=0)),
            children=(deployment("chat-p", wanted=2), deployment("chat-gateway")),
        ),
        {"Available": ("False", "ScaledToZero")},
    ),
    (
        "rolling-out",
        observed(children=(*all_ready()[:2], deployment("chat-decode", wanted=4, replicas=5, updatedReplicas=1))),
        {"Available": ("True", "Ready"), "Progressing": ("True", "RollingOut")},
    ),
    (
        "not-seen-by-the-deployment-controller",
        observed(children=(*all_ready()[:2], deployment("chat-decode", wanted=4, observedGeneration=0))),
        {"Progressing": ("True", "Scaling")},
    ),
    (
        "stuck",
        observed(
            children=(
                *all_ready()[:2],
                deployment(
                    "chat-decode",
                    wanted=4,
                    ready=1,
                    conditions=[{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}],
                ),
            )
        ),
        {
            "Available": ("True", "Ready"),
            "Progressing": ("False", "ProgressDeadlineExceeded"),
            "Degraded": ("True", "ProgressDeadlineExceeded"),
        },
    ),
    (
        "pods-refused",
        observed(
            children=(
                *all_ready()[:2],
                deployment(
                    "chat-decode",
                    wanted=4,
                    replicas=1,
                    ready=1,
                    conditions=[{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}],
                ),
            )
        ),
        {
            "Available": ("True", "Ready"),
            "Progressing": ("True", "Scaling"),
            "Degraded": ("True", "PodsRefused"),
        },
    ),
    (
        "no-policy",
        observed(serving_pool(policyRef={"name": "fair"})),
        {
            "Degraded": ("True", "PolicyNotFound"),
            "ResolvedRefs": ("False", "PolicyNotFound"),
            "Progressing": ("False", "PolicyNotFound"),
        },
    ),
    (
        "no-profile",
        observed(profiles=profiles("h20")),
        {"Degraded": ("True", "ProfileNotFound"), "ResolvedRefs": ("False", "ProfileNotFound")},
    ),
    (
        "profile-without-sense",
        observed(profiles={**profiles("h20"), "a100": profile("a100", kvTokens=1)}),
        {"Degraded": ("True", "ProfileInvalid"), "ResolvedRefs": ("False", "ProfileInvalid")},
    ),
    (
        "policy-of-another-release",
        observed(serving_pool(policyRef={"name": "fair"}), policy=policy(placement="crystal-ball")),
        {"Degraded": ("True", "PolicyInvalid"), "ResolvedRefs": ("False", "PolicyInvalid")},
    ),
    (
        "policy-that-this-fleet-cannot-carry-out",
        observed(serving_pool(policyRef={"name": "fair"}), policy=policy(partition={"type": "fixed"})),
        {"Degraded": ("True", "PolicyUnsuited"), "ResolvedRefs": ("True", "RefsResolved")},
    ),
    (
        "cuts-that-these-engines-cannot-carry-out",
        observed(serving_pool(*FLEXIBLE, policyRef={"name": "fair"}), policy=policy(partition=PROMPT_CUTS)),
        {"Degraded": ("True", "PolicyUnsuited")},
    ),
    (
        "cuts-that-no-face-carries-out",
        observed(
            serving_pool(*FLEXIBLE, policyRef={"name": "fair"}, engine=READS_PARTS),
            policy=policy(partition={"type": "libra"}),
        ),
        {"Degraded": ("True", "PolicyUnsuited")},
    ),
    (
        "cuts-of-prompts",
        observed(
            serving_pool(*FLEXIBLE, policyRef={"name": "fair"}, engine=READS_PARTS),
            policy=policy(partition=PROMPT_CUTS),
            children=(deployment("chat-all", wanted=4), deployment("chat-gateway")),
        ),
        {"Degraded": ("False", "AsExpected")},
    ),
    (
        "policy-that-makes-no-sense",
        observed(serving_pool(policyRef={"name": "fair"}), policy=policy(queue={"type": "las"}, admission=OPEN)),
        {"Degraded": ("True", "PolicyInvalid"), "ResolvedRefs": ("False", "PolicyInvalid")},
    ),
    (
        "no-objective",
        observed(serving_pool(sloRef={"name": "fast"}), children=all_ready()),
        {
            "Available": ("True", "Ready"),
            "Degraded": ("True", "SLONotFound"),
            "ResolvedRefs": ("False", "SLONotFound"),
            "SLOMet": ("Unknown", "SLONotFound"),
        },
    ),
    (
        "objective-not-measured",
        observed(serving_pool(sloRef={"name": "fast"}), objectives=objectives(objective()), children=all_ready()),
        {"SLOMet": ("Unknown", "NotMeasured"), "Degraded": ("False", "AsExpected")},
    ),
    (
        "over-budget",
        observed(serving_pool(gpuBudget=7), profiles=TWO_GPU_PREFILL),
        {"Degraded": ("True", "GPUBudgetExceeded")},
    ),
    (
        "several-nodes",
        observed(serving_pool(pool("it", "Flexible", nodesPerInstance=2))),
        {"Degraded": ("True", "APINotInstalled"), "Progressing": ("False", "APINotInstalled")},
    ),
    (
        "not-a-spec",
        observed(serving_pool(model={"name": ""})),
        {"Degraded": ("True", "InvalidSpec"), "Progressing": ("False", "InvalidSpec")},
    ),
    (
        "a-pool-with-a-name-of-the-gateways",
        observed(serving_pool(pool("gateway-admin", "Flexible"))),
        {"Degraded": ("True", "InvalidSpec")},
    ),
    (
        "no-image",
        observed(pods=(pod("a", waiting=("ImagePullBackOff", "no such image")),)),
        {"Degraded": ("True", "ImageUnavailable")},
    ),
    (
        "crashing",
        observed(pods=(pod("a", waiting=("CrashLoopBackOff", "back-off")),)),
        {"Degraded": ("True", "CrashLoop")},
    ),
    (
        "no-room",
        observed(
            pods=(pod("a", conditions=[{"type": "PodScheduled", "reason": "Unschedulable", "message": "no GPU"}]),)
        ),
        {"Degraded": ("True", "Unschedulable")},
    ),
]


@pytest.mark.parametrize(
    ("situation", "expected"), [case[1:] for case in CONDITIONS], ids=[case[0] for case in CONDITIONS]
)
def test_conditions_say_what_is(situation: Observed, expected: dict[str, tuple[str, str]]) -> None:
    """Situation to (status, reason) by condition type."""
    assert {kind: condition(situation, kind) for kind in expected} == expected


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal(DEPLOYMENT.key("chat-decode"), "quota"), ("True", "ApplyFailed")),
        (Refusal(SERVICE.key("chat-decode"), "exists", taken=True), ("True", "NameConflict")),
    ],
    ids=["refused-write", "object-of-another-owner"],
)
def test_what_could_not_be_written_is_in_the_condition(refusal: Refusal, expected: tuple[str, str]) -> None:
    """From the outcome of the same look; the pool is looked at again."""
    situation = observed(children=all_ready())
    assert condition(situation, "Degraded", refusal) == expected
    assert judged(situation, refusal).requeue_s is not None


def test_what_this_look_has_written_is_not_complete_whatever_was_observed() -> None:
    """The counts that were read before a Deployment was written are those of the older spec."""
    situation = observed(children=all_ready())
    written = Outcome(written=frozenset({DEPLOYMENT.key("chat-decode")}))
    found = verdict(situation, plan(situation), written)
    progressing = next(item for item in (found.status or {})["conditions"] if item["type"] == "Progressing")
    assert progressing["status"] == "True"
    assert "chat-decode" in progressing["message"]
    assert found.requeue_s is not None


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        pytest.param(observed(serving_pool(policyRef={"name": "fair"})), ["SchedulingPolicy fair"], id="policy"),
        pytest.param(
            observed(profiles={}), ["HardwareProfile a100", "HardwareProfile h20", "pool decode"], id="profile"
        ),
        pytest.param(observed(serving_pool(sloRef={"name": "fast"})), ["ServiceLevelObjective fast"], id="objective"),
        pytest.param(observed(serving_pool(model={"name": ""})), ["spec.model.name"], id="spec"),
        pytest.param(
            observed(serving_pool(gpuBudget=7), profiles=TWO_GPU_PREFILL),
            ["spec.gpuBudget: ", "4 (prefill) + 4 (decode) = 8 GPUs", "the budget is 7"],
            id="budget",
        ),
    ],
)
def test_a_problem_names_object_and_field(situation: Observed, words: list[str]) -> None:
    """Degraded says which object or field."""
    text = message(situation, "Degraded")
    assert [word for word in words if word not in text] == []


def test_what_waits_for_a_reference_is_neither_written_nor_pruned() -> None:
    """A deleted profile must not cost a running fleet."""
    situation = observed(profiles=profiles("h20"), children=all_ready())
    result = plan(situation)
    assert "Deployment/chat-decode" in objects(result)
    assert not {"Deployment/chat-prefill", "Deployment/chat-gateway", "ConfigMap/chat-gateway"} & set(objects(result))
    assert result.prune == ()
    assert condition(situation, "Available") == ("True", "Ready")


@pytest.mark.parametrize("spec", [{"model": {"name": ""}}, {"pools": []}, {"engine": None}], ids=str)
def test_a_spec_that_is_not_valid_changes_nothing(spec: dict[str, Any]) -> None:
    """Objects stay, counts and availability stay, only Degraded and Progressing speak."""
    before = status_of(observed(children=all_ready()))
    situation = observed(serving_pool(status=before, generation=2, **spec), children=all_ready())
    assert (plan(situation).apply, plan(situation).prune) == ((), ())
    assert condition(situation, "Available") == ("True", "Ready")
    assert condition(situation, "Degraded") == ("True", "InvalidSpec")
    assert status_of(situation)["pools"] == before["pools"]
    assert status_of(situation)["observedGeneration"] == 2


def test_over_budget_no_pool_grows_and_none_is_removed() -> None:
    """The gateway and Services are brought in line all the same."""
    result = plan(observed(serving_pool(gpuBudget=7), profiles=TWO_GPU_PREFILL, children=all_ready()))
    assert [name for name in objects(result) if name.startswith("Deployment/")] == ["Deployment/chat-gateway"]
    assert result.prune == ()


def test_a_pool_that_left_the_spec_is_pruned() -> None:
    """Only children that nothing wants and nothing holds."""
    children = (*all_ready(), deployment("chat-old"))
    assert [item["metadata"]["name"] for item in plan(observed(children=children)).prune] == ["chat-old"]


@pytest.mark.parametrize("wrong", [{"hardware": "h20o"}, {"nodesPerInstance": 2}], ids=str)
def test_a_pool_that_left_the_spec_stays_while_its_successor_waits(wrong: dict[str, Any]) -> None:
    """Renamed with a mistake it would lose all engines, and get none."""
    prefill = pool("prefill", "Prefill", hardware="a100")
    before = plan(observed(serving_pool(prefill, pool("old", "Decode")))).apply
    children = tuple({**item, "metadata": {**item["metadata"], "uid": "u"}} for item in before)
    edited = serving_pool(prefill, pool("new", "Decode", **wrong))
    assert plan(observed(edited, children=children)).prune == ()
    pruned = plan(observed(serving_pool(prefill, pool("new", "Decode")), children=children)).prune
    assert ("Deployment", "chat-old") in {(item["kind"], item["metadata"]["name"]) for item in pruned}


def test_a_child_that_is_being_deleted_is_not_deleted_again() -> None:
    """Its finalizers may take their time."""
    going = deployment("chat-old")
    going["metadata"]["deletionTimestamp"] = "2026-11-21T05:59:00Z"
    assert plan(observed(children=(going,))).prune == ()


def test_nothing_is_made_for_a_serving_pool_that_is_being_deleted() -> None:
    """The garbage collector is at work: a new child would race with it."""
    going = serving_pool()
    going["metadata"]["deletionTimestamp"] = "2026-11-21T05:59:00Z"
    assert plan(observed(going)) == Plan()
    assert judged(observed(going)).requeue_s is None


def test_counts_ratio_and_columns() -> None:
    """What `kubectl get` prints, and what scripts read."""
    status = status_of(observed(children=(*all_ready()[:2], deployment("chat-decode", wanted=4, ready=3))))
    texts = {"prefill": "2/2", "decode": "3/4", "ratio": "2:3", "ready": "5/6", "reason": "Scaling", "sloPercent": ""}
    assert status["display"] == texts
    assert status["ratio"] == pytest.approx(2 / 3, abs=1e-4)
    assert status["prefill"] == {"replicas": 2, "readyReplicas": 2}
    hash_ = status["gateway"].pop("settingsHash")
    assert status["gateway"] == {"replicas": 1, "readyReplicas": 1}
    assert len(hash_) == 10
    decode = next(item for item in status["pools"] if item["name"] == "decode")
    assert (decode["replicas"], decode["readyReplicas"], decode["unavailableReplicas"]) == (4, 3, 1)


def test_only_what_is_not_settled_is_looked_at_again_soon() -> None:
    """A settled pool costs nothing between resyncs."""
    assert judged(observed(children=all_ready())).requeue_s is None
    assert judged(observed()).requeue_s is not None


PRIORITY = {"type": "uniboost", "parameters": {"enginePriority": True}}


def test_a_policy_that_does_not_suit_leaves_the_gateway_as_it_is_and_engines_alone() -> None:
    """What runs goes on with the policy that it has; the condition says what to do."""
    situation = observed(serving_pool(policyRef={"name": "fair"}), policy=policy(queue=PRIORITY))
    result = plan(situation)
    kinds = {(item["kind"], item["metadata"]["name"]) for item in result.apply}
    assert ("Deployment", "chat-decode") in kinds
    assert not kinds & {("ConfigMap", "chat-gateway"), ("Deployment", "chat-gateway")}
    assert result.prune == ()
    for words in ("SchedulingPolicy fair", "queue.parameters.enginePriority", "--scheduling-policy priority"):
        assert words in message(situation, "Degraded")


def test_all_parts_of_a_policy_that_suits_reach_the_gateway() -> None:
    """In its configuration file, parameters included."""
    engine = {"image": "registry.test/engine:1", "args": ["--scheduling-policy", "priority"]}
    admission = {"type": "bounded", "parameters": {"maxPrefillRequests": 3}}
    named = policy(queue=PRIORITY, admission=admission)
    result = plan(observed(serving_pool(policyRef={"name": "fair"}, engine=engine), policy=named))
    config = find(result, "ConfigMap", "chat-gateway")
    (text,) = config["data"].values()
    assert parse_settings(text).policy == SchedulingPolicySpec.parse(named["spec"])


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
