"""Command lines of the components and of the namespace's set-up: pure, so that they can be read and tested."""

from pathlib import Path

from testbed.packages import find_program
from testbed.pki import CONTROLLER_MANAGER, KUBELET_CLIENT, NETWORK_POLICIES, SCHEDULER, kubelet_identity
from testbed.spec import (
    API_ADDRESS,
    CLUSTER_DOMAIN,
    DNS_ADDRESS,
    NODE_PREFIX_BITS,
    POD_CIDR,
    SERVICE_CIDR,
    ClusterPaths,
    ClusterSpec,
    NodeSpec,
)

_ETCD_URL = "http://127.0.0.1:2379"
_BRIDGE = "node0"

# Each node sees its own /run, /var/lib and /var/log, as a machine of its own would. The kubelet insists on some kernel
# settings and would change them for the whole machine: it finds files with the values that it wants in their place.
_NODE_MOUNTS = """
folder=$1
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/lib
mkdir -p /run/lock /run/netns /run/containerd
ln -s "$folder/c.sock" /run/containerd/containerd.sock
mount --bind "$folder/log" /var/log
for file in "$folder"/sysctl/*; do
  setting=/proc/sys/$(basename "$file" | tr . /)
  [ ! -e "$setting" ] || mount --bind "$file" "$setting"
done
mount --make-rshared /
shift
exec "$@"
"""

# What the kubelet sets at its start (its --protect-kernel-defaults names them).
KUBELET_SETTINGS = {
    "vm.overcommit_memory": "1",
    "vm.panic_on_oom": "0",
    "kernel.panic": "10",
    "kernel.panic_on_oops": "1",
    "kernel.keys.root_maxkeys": "1000000",
    "kernel.keys.root_maxbytes": "25000000",
}


def network(spec: ClusterSpec, paths: ClusterPaths) -> list[list[str]]:
    """Set up the namespace: a bridge without ports has the nodes' addresses (not every kernel has `dummy` links)."""
    ip = find_program("ip")
    addresses = [API_ADDRESS, DNS_ADDRESS, *(node.address for node in spec.nodes)]
    return [
        [ip, "link", "set", "lo", "up"],
        [ip, "link", "add", _BRIDGE, "type", "bridge"],
        [ip, "link", "set", _BRIDGE, "up"],
        *([ip, "address", "add", f"{address}/{NODE_PREFIX_BITS}", "dev", _BRIDGE] for address in addresses),
        # Service addresses need a route before NAT rewrites them. Nothing is attached to the bridge: nothing leaves.
        [ip, "route", "add", "default", "dev", _BRIDGE],
        [find_program("nft"), "-f", str(paths.root / "hairpin.nft")],
        [find_program("sysctl"), "-q", "-w", "net.ipv4.ip_forward=1"],  # of this namespace only
    ]


def supervisor_mounts() -> list[list[str]]:
    """The cluster's private view of the machine; the nodes' own views lie on top."""
    mount = find_program("mount")
    return [
        [mount, "-t", "proc", "proc", "/proc"],
        [mount, "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"],
        [mount, "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/var/lib"],
    ]


def etcd(paths: ClusterPaths) -> list[str]:
    return [
        find_program("etcd"),
        "--data-dir", str(paths.root / "etcd"),
        "--unsafe-no-fsync",  # a test cluster's data need not survive a power cut
        "--listen-client-urls", _ETCD_URL,
        "--advertise-client-urls", _ETCD_URL,
    ]  # fmt: skip


def apiserver(spec: ClusterSpec, paths: ClusterPaths, programs: Path) -> list[str]:
    pki = paths.pki
    return [
        str(programs / "kube-apiserver"),
        f"--etcd-servers={_ETCD_URL}",
        "--bind-address=0.0.0.0",
        f"--secure-port={spec.api_port}",
        f"--advertise-address={API_ADDRESS}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/{KUBELET_CLIENT.file}.crt",
        f"--kubelet-client-key={pki}/{KUBELET_CLIENT.file}.key",
    ]


def controller_manager(paths: ClusterPaths, programs: Path) -> list[str]:
    return [
        str(programs / "kube-controller-manager"),
        *_component_flags(paths.user_kubeconfig(CONTROLLER_MANAGER.file)),
        f"--service-account-private-key-file={paths.pki}/sa.key",
        f"--root-ca-file={paths.pki}/ca.crt",
        f"--cluster-signing-cert-file={paths.pki}/ca.crt",
        f"--cluster-signing-key-file={paths.pki}/ca.key",
        f"--cluster-cidr={POD_CIDR}",
        "--use-service-account-credentials",
    ]


def scheduler(paths: ClusterPaths, programs: Path) -> list[str]:
    return [str(programs / "kube-scheduler"), *_component_flags(paths.user_kubeconfig(SCHEDULER.file))]


def _component_flags(kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",  # there is one of each: an election would only cost start time
    ]


def proxy(paths: ClusterPaths, programs: Path) -> list[str]:
    return [str(programs / "kube-proxy"), f"--config={paths.root}/proxy.yaml"]


def coredns(paths: ClusterPaths, programs: Path) -> list[str]:
    return [str(programs / "coredns"), "-conf", str(paths.root / "Corefile")]


def network_policies(node: NodeSpec, paths: ClusterPaths, programs: Path) -> list[str]:
    """One process writes the rules for the pods of all nodes, as they share the namespace; it waits for `node`."""
    return [
        str(programs / "network-policies"),
        f"--kubeconfig={paths.user_kubeconfig(NETWORK_POLICIES.file)}",
        f"--node={node.name}",
        f"--service-cidr={SERVICE_CIDR}",
    ]


def containerd(node: NodeSpec, paths: ClusterPaths) -> list[str]:
    """containerd in a mount namespace of the node's own."""
    folder = paths.node(node.name)
    return [
        find_program("unshare"), "--mount", "--propagation", "private", "--",
        "/bin/sh", "-euc", _NODE_MOUNTS, "node", str(folder),
        find_program("containerd"), "--config", str(folder / "containerd.toml"),
    ]  # fmt: skip


def kubelet(node: NodeSpec, paths: ClusterPaths, programs: Path, containerd_pid: int) -> list[str]:
    """The kubelet in its containerd's mount namespace."""
    folder = paths.node(node.name)
    labels = ",".join(f"{key}={value}" for key, value in node.labels.items())
    return [
        find_program("nsenter"), f"--mount=/proc/{containerd_pid}/ns/mnt", "--",
        str(programs / "kubelet"),
        f"--config={folder}/kubelet.yaml",
        f"--kubeconfig={paths.user_kubeconfig(kubelet_identity(node.name).file)}",
        f"--root-dir={folder}/kubelet",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        *([f"--node-labels={labels}"] if labels else []),
    ]  # fmt: skip


def ctr(socket: Path, *arguments: str) -> list[str]:
    """A call of containerd's client for the images and containers of Kubernetes."""
    return [find_program("ctr"), "--address", str(socket), "--namespace", "k8s.io", *arguments]
