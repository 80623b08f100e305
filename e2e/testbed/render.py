"""Configuration files of the components, as text: pure functions of the cluster's description."""

import base64
import ipaddress
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import cgroups
from testbed.commands import KUBELET_SETTINGS
from testbed.pki import (
    ADMIN,
    CONTROLLER_MANAGER,
    COREDNS,
    NETWORK_POLICIES,
    PROXY,
    SCHEDULER,
    Identity,
    kubelet_identity,
)
from testbed.spec import (
    CLUSTER_DOMAIN,
    DNS_ADDRESS,
    PAUSE_IMAGE,
    POD_CIDR,
    ClusterPaths,
    ClusterSpec,
    NodeSpec,
)

_CNI_FOLDER = "/usr/lib/cni"  # where Debian's containernetworking-plugins puts them


def as_yaml(value: Mapping[str, Any]) -> str:
    """JSON, which every YAML reader reads."""
    return json.dumps(value, indent=1) + "\n"


def containerd(spec: ClusterSpec, node: NodeSpec, paths: ClusterPaths) -> str:
    """containerd 1.6 configuration. Only the state folder and the node's own /run are written to."""
    folder = paths.node(node.name)
    return f"""version = 2
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{paths.containerd_socket(node.name)}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_CNI_FOLDER}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{spec.snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def cni(node: NodeSpec) -> str:
    """Pod network: `ptp`, as a bridge would answer Service requests between its own pods without passing NAT."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pod_subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni-addresses",
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return as_yaml({"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": ipam}, portmap]})


def kubelet(spec: ClusterSpec, node: NodeSpec, paths: ClusterPaths) -> str:
    """KubeletConfiguration (kubelet.config.k8s.io/v1beta1); its API asks the API server who may do what."""
    server = f"kubelet-{node.name}-server"
    return as_yaml(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "healthzBindAddress": node.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(paths.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(paths.pki / f"{server}.crt"),
            "tlsPrivateKeyFile": str(paths.pki / f"{server}.key"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroups.root_name(spec.name)}/{node.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{paths.containerd_socket(node.name)}",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": "",
            "serializeImagePulls": False,
            # Scenarios kill containers on purpose: five minutes of waiting would show nothing.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
            # The machine's disk and memory are shared with others: only real need evicts, and images stay.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
        }
    )


def proxy(paths: ClusterPaths, node: NodeSpec) -> str:
    """KubeProxyConfiguration; one proxy serves all nodes, as they share the namespace. Conntrack limits stay."""
    return as_yaml(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(paths.user_kubeconfig(PROXY.file))},
            "hostnameOverride": node.name,
            "clusterCIDR": POD_CIDR,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )


def hairpin(spec: ClusterSpec) -> str:
    """nftables rules for a pod that reaches itself through a Service: its answer must come back by the node.

    kube-proxy has such rules for the pods of its own node only, and here one proxy serves all nodes.
    """
    pods = [str(address) for node in spec.nodes for address in ipaddress.ip_network(node.pod_subnet).hosts()]
    pairs = ", ".join(f"{pod} . {pod}" for pod in pods)
    return f"""table ip testbed {{
 set same-pod {{
  type ipv4_addr . ipv4_addr
  elements = {{ {pairs} }}
 }}
 chain postrouting {{
  type nat hook postrouting priority srcnat - 5; policy accept;
  ct status dnat ip saddr . ip daddr @same-pod masquerade
 }}
}}
"""


def corefile(paths: ClusterPaths) -> str:
    """CoreDNS configuration: the cluster's names and nothing else, as there is no way out."""
    return f"""{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
 bind {DNS_ADDRESS}
 errors
 kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
  kubeconfig {paths.user_kubeconfig(COREDNS.file)} {_CONTEXT}
  pods insecure
 }}
 cache 5
}}
.:53 {{
 bind {DNS_ADDRESS}
 template ANY ANY {{
  rcode NXDOMAIN
 }}
}}
"""


_CONTEXT = "ballast-testbed"


def kubeconfig(api_port: int, authority: bytes, certificate: bytes, key: bytes) -> str:
    """A kubeconfig that holds its certificates, so that the file can be moved, and that verifies the server."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    cluster = {"server": f"https://127.0.0.1:{api_port}", "certificate-authority-data": encoded(authority)}
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    return as_yaml(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": _CONTEXT,
            "contexts": [{"name": _CONTEXT, "context": {"cluster": _CONTEXT, "user": _CONTEXT}}],
            "clusters": [{"name": _CONTEXT, "cluster": cluster}],
            "users": [{"name": _CONTEXT, "user": user}],
        }
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_kubeconfig(spec: ClusterSpec, paths: ClusterPaths, identity: Identity, target: Path) -> None:
    parts = [(paths.pki / name).read_bytes() for name in ("ca.crt", f"{identity.file}.crt", f"{identity.file}.key")]
    _write(target, kubeconfig(spec.api_port, parts[0], parts[1], parts[2]))
    target.chmod(0o600)


def write_all(spec: ClusterSpec, paths: ClusterPaths) -> None:
    """Write every configuration file; the certificates must be there."""
    _write_kubeconfig(spec, paths, ADMIN, paths.kubeconfig)
    users: Sequence[Identity] = (CONTROLLER_MANAGER, SCHEDULER, PROXY, COREDNS, NETWORK_POLICIES)
    for identity in (*users, *(kubelet_identity(node.name) for node in spec.nodes)):
        _write_kubeconfig(spec, paths, identity, paths.user_kubeconfig(identity.file))
    _write(paths.root / "hairpin.nft", hairpin(spec))
    _write(paths.root / "Corefile", corefile(paths))
    _write(paths.root / "proxy.yaml", proxy(paths, spec.nodes[0]))
    for node in spec.nodes:
        folder = paths.node(node.name)
        for name in ("kubelet", "log", "containerd"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        _write(folder / "containerd.toml", containerd(spec, node, paths))
        _write(folder / "cni" / "10-pods.conflist", cni(node))
        for setting, value in KUBELET_SETTINGS.items():
            _write(folder / "sysctl" / setting, value + "\n")
        _write(folder / "kubelet.yaml", kubelet(spec, node, paths))
