"""The components' configuration and command lines: identities, addresses and paths fit together."""

import base64
import ipaddress
import json
import tomllib
from pathlib import Path

import pytest

from testbed import commands, packages, pki, render
from testbed.apiclient import bootstrap_objects
from testbed.errors import TestbedError
from testbed.spec import API_ADDRESS, DNS_ADDRESS, ClusterPaths, ClusterSpec, parse_nodes

_SPEC = ClusterSpec("dev", parse_nodes("a100:8,h20:8,none"), 40123)
_PATHS = ClusterPaths(Path("/state/dev"))
_PROGRAMS = Path("/programs")


@pytest.fixture(autouse=True)
def _programs_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines are checked on machines without these programs too."""
    monkeypatch.setattr(commands, "find_program", lambda name: f"/usr/bin/{name}")


def test_the_kubelet_asks_the_api_server_who_may_call_it() -> None:
    """No anonymous calls, webhook authorization, and its own certificate."""
    config = json.loads(render.kubelet(_SPEC, _SPEC.nodes[0], _PATHS))
    assert config["authentication"]["anonymous"]["enabled"] is False
    assert config["authentication"]["webhook"]["enabled"] is True
    assert config["authorization"]["mode"] == "Webhook"
    assert config["tlsCertFile"].endswith("kubelet-a100-1-server.crt")
    assert config["cgroupRoot"] == "/ballast-dev/a100-1"


def test_each_kubelet_has_the_identity_that_the_node_authorizer_expects() -> None:
    """CN system:node:NAME in group system:nodes, and no two alike."""
    identities = pki.identities(_SPEC)
    assert len({identity.file for identity in identities}) == len(identities)
    subjects = {identity.subject for identity in identities}
    for node in _SPEC.nodes:
        assert f"/O=system:nodes/CN=system:node:{node.name}" in subjects


def test_the_api_server_is_verified_by_every_address_that_is_used() -> None:
    """Loopback (inside, and from the machine by the relay), the node network, and the Service."""
    api = next(identity for identity in pki.identities(_SPEC) if identity.file == "apiserver")
    assert {"IP:127.0.0.1", f"IP:{API_ADDRESS}", "IP:10.245.0.1", "DNS:kubernetes.default.svc"} <= set(api.names)
    assert "serverAuth" in pki.extensions(api)
    assert "clientAuth" in pki.extensions(pki.ADMIN)


def test_authorization_is_node_and_rbac() -> None:
    """Nothing is allowed just because this is a test cluster."""
    flags = commands.apiserver(_SPEC, _PATHS, _PROGRAMS)
    assert "--authorization-mode=Node,RBAC" in flags
    assert "--enable-admission-plugins=NodeRestriction" in flags
    assert not any("AlwaysAllow" in flag or "token-auth-file" in flag for flag in flags)


def test_a_kubeconfig_carries_its_certificates_and_verifies_the_server() -> None:
    """It can be moved, and never skips verification."""
    config = json.loads(render.kubeconfig(40123, b"ca", b"cert", b"key"))
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:40123"
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"ca"
    assert "insecure-skip-tls-verify" not in cluster


def test_containerd_writes_only_below_the_nodes_folder_and_its_private_run() -> None:
    """The file is TOML, and no default path of the machine is left in it."""
    config = tomllib.loads(render.containerd(_SPEC, _SPEC.nodes[1], _PATHS))
    assert config["root"] == "/state/dev/node/h20-1/containerd"
    assert config["state"].startswith("/run/")
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["containerd"]["snapshotter"] == "overlayfs"
    assert "io.containerd.internal.v1.opt" in config["disabled_plugins"]


def test_pod_ranges_and_node_addresses_do_not_overlap() -> None:
    """Neither with each other nor with the addresses of the API server and of DNS."""
    subnets = [ipaddress.ip_network(node.pod_subnet) for node in _SPEC.nodes]
    assert not any(a.overlaps(b) for a in subnets for b in subnets if a is not b)
    assert len({API_ADDRESS, DNS_ADDRESS, *(node.address for node in _SPEC.nodes)}) == 5
    ranges = [json.loads(render.cni(node))["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for node in _SPEC.nodes]
    assert ranges == [node.pod_subnet for node in _SPEC.nodes]


def test_every_pod_address_has_its_hairpin_pair() -> None:
    """254 addresses per node, each with itself."""
    text = render.hairpin(_SPEC)
    assert text.count(" . 10.244.") == 3 * 254
    assert "10.244.3.254 . 10.244.3.254" in text


def test_what_enforces_network_policies_reads_and_writes_nothing() -> None:
    """Its certificate's user has a role of its own, and its command line the kubeconfig with that certificate."""
    user = pki.NETWORK_POLICIES.user
    (role,) = (each for _, each in bootstrap_objects() if each["metadata"]["name"] == user)
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert "networkpolicies" in {kind for rule in role["rules"] for kind in rule["resources"]}
    assert "secrets" not in {kind for rule in role["rules"] for kind in rule["resources"]}
    bound = [each for _, each in bootstrap_objects() if each["metadata"]["name"] == f"testbed:{user}"]
    assert [each["subjects"][0]["name"] for each in bound] == [user]
    flags = commands.network_policies(_SPEC.nodes[0], _PATHS, _PROGRAMS)
    assert "--kubeconfig=/state/dev/pki/network-policies.kubeconfig" in flags


def test_labels_are_given_at_registration() -> None:
    """A node never exists without its pool's label; a plain node has none."""
    labelled = commands.kubelet(_SPEC.nodes[0], _PATHS, _PROGRAMS, 7)
    plain = commands.kubelet(_SPEC.nodes[2], _PATHS, _PROGRAMS, 7)
    assert "--node-labels=serving.ballast.dev/hardware=a100" in labelled
    assert not any("node-labels" in flag for flag in plain)


def test_a_missing_program_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a traceback."""
    monkeypatch.setattr(packages, "SEARCH_PATH", "/nowhere")
    with pytest.raises(TestbedError, match="debootstrap is not installed; run `make testbed-build`"):
        packages.find_program("debootstrap")
    assert "etcd-server" in packages.missing_packages()
