"""The agents of the picker face: which pods get one, what listens where, and what the status says of them."""

from __future__ import annotations

import pytest

from ballast_api.loading import parse_settings
from ballast_gateway.agent.command import read
from ballast_operator.kinds import Manifest
from ballast_operator.planning.plan import plan
from ballast_operator.planning.planned import Plan
from tests.support.operator_builders import all_ready, deployment, observed, policy, pool, serving_pool, status_of

FLEET = (pool("prefill", "Prefill", hardware="a100"), pool("decode", "Decode"), pool("spare", "Flexible"))


def template(result: Plan, name: str) -> Manifest:
    found: Manifest = next(
        item["spec"]["template"]
        for item in result.apply
        if (item["kind"], item["metadata"]["name"]) == ("Deployment", name)
    )
    return found


def available(situation: Manifest, *children: Manifest) -> str:
    status = status_of(observed(situation, children=children))
    return str(next(item["message"] for item in status["conditions"] if item["type"] == "Available"))


def behind(face: str, **engine: object) -> Plan:
    spec = {"image": "registry.test/engine:1", **engine}
    return plan(observed(serving_pool(*FLEET, gateway={"face": face, "image": "own/ballast:2"}, engine=spec)))


@pytest.mark.parametrize("face", ["Picker", "Both"])
def test_pods_that_decode_get_an_agent_that_listens_where_the_engine_would(face: str) -> None:
    """A native sidecar of the gateway's image, with the fleet's token; the engine is on the pod's loopback."""
    result = behind(face)
    for name in ("chat-decode", "chat-spare"):
        pod = template(result, name)["spec"]
        (agent,) = pod["initContainers"]
        assert (agent["name"], agent["restartPolicy"], agent["image"]) == ("agent", "Always", "own/ballast:2")
        assert " ".join(agent["args"]) == (
            "agent --port 8000 --engine 127.0.0.1:8200 --pod-api-port 9004 --token-file /etc/ballast-token/token"
        )
        assert {port["name"]: port["containerPort"] for port in agent["ports"]} == {"http": 8000, "pod-api": 9004}
        assert agent["volumeMounts"] == [{"name": "token", "mountPath": "/etc/ballast-token", "readOnly": True}]
        (volume,) = (each for each in pod["volumes"] if each["name"] == "token")
        assert volume["secret"]["secretName"] == "chat-gateway-token"
        (engine,) = pod["containers"]
        arguments = " ".join(engine["args"])
        assert "--host 127.0.0.1 --port 8200" in arguments
        assert "http" not in [port["name"] for port in engine["ports"]]
        assert {engine[probe]["httpGet"]["port"] for probe in engine if probe.endswith("Probe")} == {8000}
        assert template(result, name)["metadata"]["annotations"]["serving.ballast.dev/pod-api-port"] == "9004"


def test_the_agents_probes_wait_for_nothing_but_the_agent() -> None:
    """The engine's container starts after the agent's startup probe: one that asked the engine would never pass. An
    agent that hangs is restarted before the engine, which is asked through it, is taken for dead."""
    pod = template(behind("Picker"), "chat-decode")["spec"]
    (agent,), (engine,) = pod["initContainers"], pod["containers"]
    assert agent["startupProbe"]["httpGet"] == {"path": "/ballast/v1/live", "port": "pod-api"}
    assert agent["readinessProbe"]["httpGet"]["path"] == "/ballast/v1/ready"

    def patience_s(container: Manifest) -> int:
        probe = container["livenessProbe"]
        return int(probe["periodSeconds"] * probe["failureThreshold"])

    assert patience_s(agent) * 2 <= patience_s(engine)


def test_all_other_pods_stay_as_they_are() -> None:
    """Prefill pods always; every pod with the proxy face, or without agents."""
    assert template(behind("Picker"), "chat-prefill") == template(behind("Proxy"), "chat-prefill")
    for name in ("chat-decode", "chat-spare"):
        plain = template(behind("Proxy"), name)
        assert "initContainers" not in plain["spec"]
        assert "serving.ballast.dev/pod-api-port" not in plain["metadata"]["annotations"]
        assert template(behind("Picker", agent="Never"), name) == plain


def test_an_engine_on_the_port_behind_agents_takes_the_next_one() -> None:
    """Both would want 8200."""
    pod = template(behind("Picker", port=8200), "chat-decode")["spec"]
    assert pod["initContainers"][0]["args"][1:5] == ["--port", "8200", "--engine", "127.0.0.1:8201"]
    assert "--host 127.0.0.1 --port 8201" in " ".join(pod["containers"][0]["args"])


def test_services_find_the_engines_port_whoever_listens_there() -> None:
    """By number: no port of the pods with agents is the engine's, and both kinds serve during a rollout."""
    services = {item["metadata"]["name"]: item for item in behind("Picker").apply if item["kind"] == "Service"}
    for name in ("chat-decode", "chat-prefill", "chat-gateway-engines"):
        assert [port["targetPort"] for port in services[name]["spec"]["ports"]] == [8000]


def test_an_overlay_changes_the_agent_by_its_name() -> None:
    """Its resources, or an image that stays when the gateway's changes."""
    overlay = {"spec": {"initContainers": [{"name": "agent", "image": "own/ballast:1"}]}}
    decode = pool("decode", "Decode", template=overlay)
    result = plan(observed(serving_pool(FLEET[0], decode, gateway={"face": "Picker"})))
    (agent,) = template(result, "chat-decode")["spec"]["initContainers"]
    assert (agent["image"], agent["restartPolicy"]) == ("own/ballast:1", "Always")


@pytest.mark.parametrize(("face", "agent"), [("Proxy", "Auto"), ("Picker", "Never")])
def test_a_pinned_agent_is_left_out_of_pods_that_have_none(face: str, agent: str) -> None:
    """Else a plain init container with that image's entry point would keep the pod from starting. The user's own init
    containers stay, and the status says what has no effect."""
    pin = {"name": "agent", "image": "own/ballast:1"}
    pinned = pool("prefill", "Prefill", hardware="a100", template={"spec": {"initContainers": [pin]}})
    beside = pool("decode", "Decode", template={"spec": {"initContainers": [pin, {"name": "warm", "image": "w:1"}]}})
    engine = {"image": "registry.test/engine:1", "agent": agent}
    result = plan(observed(serving_pool(pinned, beside, gateway={"face": face}, engine=engine)))
    assert "initContainers" not in template(result, "chat-prefill")["spec"]
    assert template(result, "chat-decode")["spec"]["initContainers"] == [{"name": "warm", "image": "w:1"}]
    assert [each for each in result.remarks if "agent" in each] == [
        f"pools[{index}].template: the init container agent is left out, for pods of pool {name} have no agent"
        for index, name in enumerate(("prefill", "decode"))
    ]


def test_a_pinned_agent_of_prefill_pods_is_left_out_behind_an_envoy() -> None:
    """Decode pods have theirs, of which nothing is to be said."""
    overlay = {"spec": {"initContainers": [{"name": "agent", "image": "own/ballast:1"}]}}
    pools = (pool("prefill", "Prefill", hardware="a100", template=overlay), pool("decode", "Decode", template=overlay))
    result = plan(observed(serving_pool(*pools, gateway={"face": "Picker"})))
    assert "initContainers" not in template(result, "chat-prefill")["spec"]
    assert [each for each in result.remarks if "agent" in each] == [
        "pools[0].template: the init container agent is left out, for pods of pool prefill have no agent"
    ]


def test_an_own_init_container_of_the_agents_name_stays_in_pods_that_have_none() -> None:
    """Vault's, say. The hash of such pods, and of those without init containers, is as it was: no engine rolls."""
    own = {"name": "agent", "image": "hashicorp/vault:1", "command": ["vault", "agent", "-exit-after-auth"]}
    mine = pool("prefill", "Prefill", hardware="a100", template={"spec": {"initContainers": [own]}})
    none = pool("decode", "Decode", template={"spec": {"initContainers": []}})
    result = plan(observed(serving_pool(mine, none)))
    assert template(result, "chat-prefill")["spec"]["initContainers"] == [own]
    assert template(result, "chat-decode")["spec"]["initContainers"] == []
    assert not [each for each in result.remarks if "agent" in each]


def test_an_agent_traces_by_the_environment_that_a_pools_template_gives_it() -> None:
    """Beside what it has anyway; the agent's own command reads it. The engine's container stays as it was."""
    wanted = [
        {"name": "BALLAST_TRACE_ENDPOINT", "value": "http://collector:4318"},
        {"name": "OTEL_EXPORTER_OTLP_PROTOCOL", "value": "http/protobuf"},
    ]
    overlay = {"spec": {"initContainers": [{"name": "agent", "env": wanted}]}}
    decode = pool("decode", "Decode", template=overlay)
    changed = plan(observed(serving_pool(FLEET[0], decode, gateway={"face": "Picker"})))
    pod, plain = template(changed, "chat-decode")["spec"], template(behind("Picker"), "chat-decode")["spec"]
    (agent,), (before,) = pod["initContainers"], plain["initContainers"]
    assert [each for each in agent["env"] if each not in before["env"]] == wanted
    assert [each for each in before["env"] if each not in agent["env"]] == []
    assert pod["containers"] == plain["containers"]
    values = {each["name"]: each.get("value", "pod") for each in agent["env"]}
    assert agent["args"][0] == "agent"
    assert read(agent["args"][1:], values)[0].trace_endpoint == "http://collector:4318"


def test_the_status_says_what_becomes_of_requests_behind_an_envoy() -> None:
    """With agents, while they are rolled out, and without them."""
    picker = serving_pool(gateway={"face": "Picker"})
    assert available(picker, *all_ready()).endswith("the agents of the decode pods disaggregate and move them")
    rolling = (*all_ready()[:2], deployment("chat-decode", wanted=4, replicas=5, updatedReplicas=1))
    assert "not all are of the new revision yet" in available(picker, *rolling)
    never = serving_pool(gateway={"face": "Picker"}, engine={"image": "e:1", "agent": "Never"})
    assert "neither disaggregated nor moved: spec.engine.agent is Never" in available(never, *all_ready())
    assert available(serving_pool(), *all_ready()) == "requests can be served"


@pytest.mark.parametrize(("agent", "suits"), [("Auto", True), ("Never", False)])
def test_a_policy_that_moves_streams_suits_the_picker_face_with_agents(agent: str, suits: bool) -> None:
    """Without them the gateway would not start with it."""
    ares = policy("fair", rescheduling={"type": "ares"})
    wanted = serving_pool(
        gateway={"face": "Picker"}, engine={"image": "e:1", "agent": agent}, policyRef={"name": "fair"}
    )
    result = plan(observed(wanted, policy=ares))
    assert [problem.reason for problem in result.problems] == ([] if suits else ["PolicyUnsuited"])


def test_gateways_find_each_other_and_lead_by_the_lease_that_they_may_hold() -> None:
    """Peers by their labels; the Role names the Lease of the settings."""
    result = behind("Picker")
    config = next(item for item in result.apply if item["kind"] == "ConfigMap")
    settings = parse_settings(config["data"]["gateway.yaml"])
    peers = settings.peers.kubernetes
    assert peers is not None
    labels = template(result, "chat-gateway")["metadata"]["labels"]
    assert all(labels[key] == value for key, _, value in (part.partition("=") for part in peers.selector.split(",")))
    role = next(item for item in result.apply if item["kind"] == "Role")
    (bound,) = (rule for rule in role["rules"] if "resourceNames" in rule)
    assert (bound["resources"], bound["resourceNames"]) == (["leases"], [peers.lease])
    (mount,) = (
        each
        for each in template(result, "chat-gateway")["spec"]["containers"][0]["volumeMounts"]
        if each["name"] == "token"
    )
    assert settings.pod_api.token_file == f"{mount['mountPath']}/token"


def policies(result: Plan) -> dict[str, Manifest]:
    return {item["metadata"]["name"]: item["spec"] for item in result.apply if item["kind"] == "NetworkPolicy"}


def test_the_pod_api_is_for_the_gateways_and_every_other_port_for_all() -> None:
    """Of each protocol every port is named once; 9004 alone has a `from`."""
    found = policies(behind("Picker"))
    assert found.keys() == {"chat-gateway", "chat-gateway-engines"}
    for name, component in (("chat-gateway", "gateway"), ("chat-gateway-engines", "engine")):
        labels = {"serving.ballast.dev/serving-pool": "chat", "app.kubernetes.io/component": component}
        assert found[name]["podSelector"]["matchLabels"] == labels
        guarded, free = found[name]["ingress"]
        (peer,) = guarded["from"]
        assert peer == {"podSelector": {"matchLabels": {**labels, "app.kubernetes.io/component": "gateway"}}}
        assert guarded["ports"] == [{"protocol": "TCP", "port": 9004}]
        assert "from" not in free
        open_ports = {
            protocol: [
                number
                for each in free["ports"]
                if each["protocol"] == protocol
                for number in range(each["port"], each["endPort"] + 1)
            ]
            for protocol in ("TCP", "UDP", "SCTP")
        }
        every = list(range(1, 65536))
        assert open_ports == {"TCP": [number for number in every if number != 9004], "UDP": every, "SCTP": every}


def test_network_policies_are_only_where_something_is_guarded_and_wanted() -> None:
    """None for engines without agents; none at all where the administrator wants none, and old ones go."""
    assert policies(behind("Proxy")).keys() == {"chat-gateway"}
    assert policies(behind("Picker", agent="Never")).keys() == {"chat-gateway"}
    before = tuple(item for item in behind("Picker").apply if item["kind"] == "NetworkPolicy")
    off = plan(observed(serving_pool(gateway={"face": "Picker"}), children=before, network_policies=False))
    assert not policies(off)
    assert {item["metadata"]["name"] for item in off.prune} == {"chat-gateway", "chat-gateway-engines"}
