"""A certificate authority of the cluster's own, by openssl: every component and kubelet has its own identity."""

import dataclasses
import subprocess
from pathlib import Path

from testbed.errors import TestbedError
from testbed.packages import find_program
from testbed.spec import API_ADDRESS, API_SERVICE_ADDRESS, CLUSTER_DOMAIN, ClusterSpec

VALID_DAYS = 30


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """A certificate to issue: user (CN) and groups (O) as the API server reads them, alternative names for servers."""

    file: str
    user: str
    group: str | None = None
    names: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return (f"/O={self.group}" if self.group else "") + f"/CN={self.user}"


ADMIN = Identity("admin", "ballast-admin", "system:masters")
CONTROLLER_MANAGER = Identity("controller-manager", "system:kube-controller-manager")
SCHEDULER = Identity("scheduler", "system:kube-scheduler")
PROXY = Identity("proxy", "system:kube-proxy")
COREDNS = Identity("coredns", "system:coredns")
NETWORK_POLICIES = Identity("network-policies", "system:network-policies")
KUBELET_CLIENT = Identity("kubelet-client", "kube-apiserver-kubelet-client")


def kubelet_identity(node: str) -> Identity:
    """The kubelet's user, as the Node authorizer and NodeRestriction expect it."""
    return Identity(f"kubelet-{node}", f"system:node:{node}", "system:nodes")


def identities(spec: ClusterSpec) -> list[Identity]:
    """Every certificate of a cluster."""
    api_names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    api = Identity(
        "apiserver",
        "kube-apiserver",
        names=(
            *(f"DNS:{name}" for name in (*api_names, f"kubernetes.default.svc.{CLUSTER_DOMAIN}")),
            *(f"IP:{address}" for address in ("127.0.0.1", API_ADDRESS, API_SERVICE_ADDRESS)),
        ),
    )
    servers = [
        Identity(f"kubelet-{node.name}-server", node.name, names=(f"DNS:{node.name}", f"IP:{node.address}"))
        for node in spec.nodes
    ]
    users = [ADMIN, CONTROLLER_MANAGER, SCHEDULER, PROXY, COREDNS, NETWORK_POLICIES, KUBELET_CLIENT]
    return [api, *users, *(kubelet_identity(node.name) for node in spec.nodes), *servers]


def extensions(identity: Identity) -> str:
    """The openssl extension file of one certificate."""
    lines = ["basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature"]
    lines.append("extendedKeyUsage=" + ("serverAuth" if identity.names else "clientAuth"))
    if identity.names:
        lines.append("subjectAltName=" + ",".join(identity.names))
    return "\n".join(lines) + "\n"


class Authority:
    """Writes ca.crt, ca.key and NAME.crt, NAME.key into one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._openssl = find_program("openssl")

    def create(self, spec: ClusterSpec) -> None:
        """Issue everything that the cluster needs. Raises TestbedError with openssl's words."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._run(
            "req", "-x509", "-nodes", *_EC_KEY, "-keyout", self._path("ca.key"), "-out", self._path("ca.crt"),
            "-days", str(VALID_DAYS), "-subj", f"/CN=ballast-{spec.name}-ca",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        )  # fmt: skip
        self._run("genrsa", "-out", self._path("sa.key"), "2048")
        self._run("rsa", "-in", self._path("sa.key"), "-pubout", "-out", self._path("sa.pub"))
        for serial, identity in enumerate(identities(spec), start=2):
            self._issue(identity, serial)

    def _issue(self, identity: Identity, serial: int) -> None:
        request, extension = self._path(f"{identity.file}.csr"), self._folder / f"{identity.file}.ext"
        extension.write_text(extensions(identity))
        self._run(
            "req", "-new", "-nodes", *_EC_KEY, "-keyout", self._path(f"{identity.file}.key"),
            "-out", request, "-subj", identity.subject,
        )  # fmt: skip
        self._run(
            "x509", "-req", "-in", request, "-CA", self._path("ca.crt"), "-CAkey", self._path("ca.key"),
            "-set_serial", str(serial), "-days", str(VALID_DAYS), "-extfile", str(extension),
            "-out", self._path(f"{identity.file}.crt"),
        )  # fmt: skip

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    def _run(self, *arguments: str) -> None:
        result = subprocess.run([self._openssl, *arguments], capture_output=True, text=True, check=False)
        if result.returncode:
            raise TestbedError(f"openssl {arguments[0]} failed: {result.stderr.strip()}")


_EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
