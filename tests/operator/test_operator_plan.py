"""The plan as a table: situation in, objects out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from ballast_api.gateway_settings import Limits
from ballast_api.loading import parse_settings
from ballast_operator.planning.plan import plan
from ballast_operator.planning.planned import Plan
from ballast_sim.engine_sim.options import KvEventsConfig, kv_events_config
from tests.support.operator_builders import (
    DEFAULTS,
    all_ready,
    deployment,
    judged,
    observed,
    pool,
    profile,
    profiles,
    serving_pool,
)
from tests.support.operator_plans import ENVOY_GATEWAY, PARENT, TWO_GPU_PREFILL, engine, find, objects


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
    ("there", "expected"), [(None, 2), (1, 2), (4, 4), (9, 6)], ids=["new", "below", "within", "above"]
)
def test_autoscaling_keeps_what_is_there_within_its_bounds(there: int | None, expected: int) -> None:
    """Another controller may scale: the operator only clamps."""
    spec = serving_pool(pool("it", "Flexible", autoscaling={"minReplicas": 2, "maxReplicas": 6}))
    children = () if there is None else (deployment("chat-it", wanted=there),)
    assert find(plan(observed(spec, children=children)), "Deployment", "chat-it")["spec"]["replicas"] == expected


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
