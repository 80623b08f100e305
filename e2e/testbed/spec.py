"""What a cluster is made of, and where its files lie: plain values, validated once."""

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from testbed.errors import TestbedError

HARDWARE_LABEL = "serving.ballast.dev/hardware"
GPU_RESOURCE = "nvidia.com/gpu"

# Addresses live inside the cluster's own network namespace: two clusters use the same ones and never meet.
NODE_NETWORK = "192.168.77"
NODE_PREFIX_BITS = 24
API_ADDRESS = f"{NODE_NETWORK}.254"
DNS_ADDRESS = f"{NODE_NETWORK}.253"
POD_CIDR = "10.244.0.0/16"
SERVICE_CIDR = "10.245.0.0/16"
API_SERVICE_ADDRESS = "10.245.0.1"
CLUSTER_DOMAIN = "cluster.local"
PAUSE_IMAGE = "localhost/pause:1"
MAX_NODES = 9

# Unix socket paths end at 107 bytes, and the longest of ours adds about 40 to the state folder.
MAX_STATE_PATH_BYTES = 64
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: `index` starts at 1 and fixes its address and its pods' address range."""

    name: str
    index: int
    hardware: str | None = None
    gpus: int = 0

    @property
    def address(self) -> str:
        return f"{NODE_NETWORK}.{self.index}"

    @property
    def pod_subnet(self) -> str:
        return f"10.244.{self.index}.0/24"

    @property
    def labels(self) -> dict[str, str]:
        return {HARDWARE_LABEL: self.hardware} if self.hardware else {}


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to be: `api_port` is the same inside the namespace and on the machine's loopback (`testbed.relay`)."""

    name: str
    nodes: tuple[NodeSpec, ...]
    api_port: int
    snapshotter: str = "overlayfs"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw: dict[str, Any] = json.loads(text)
        return cls(**{**raw, "nodes": tuple(NodeSpec(**node) for node in raw["nodes"])})


def parse_name(name: str) -> str:
    """The cluster's name, which becomes a folder and a cgroup name; raises TestbedError for any other word."""
    if _NAME.fullmatch(name) is None:
        raise TestbedError(f"name: {name!r} must be 1-20 lower-case letters, digits or '-', and start with a letter")
    return name


def parse_nodes(text: str) -> tuple[NodeSpec, ...]:
    """Nodes from a comma-separated list of `HARDWARE[:GPUS]`, where `none` has neither label nor GPUs.

    `a100:8,h20:8,none` gives a100-1 and h20-1 with 8 GPUs each, and general-1. Raises TestbedError.
    """
    nodes: list[NodeSpec] = []
    seen: dict[str, int] = {}
    for index, word in enumerate(text.split(","), start=1):
        hardware, _, count = word.strip().partition(":")
        if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?", hardware) is None:
            raise TestbedError(f"nodes: {word!r} must be HARDWARE[:GPUS], for example a100:8, or none")
        if count and not (count.isascii() and count.isdecimal() and int(count) <= 64):
            raise TestbedError(f"nodes: {word!r} must give a GPU count between 0 and 64")
        plain = hardware == "none"
        if plain and count:
            raise TestbedError(f"nodes: {word!r} cannot have GPUs without a hardware name")
        base = "general" if plain else hardware
        seen[base] = seen.get(base, 0) + 1
        gpus = 0 if plain else int(count or 8)
        nodes.append(NodeSpec(f"{base}-{seen[base]}", index, None if plain else hardware, gpus))
    if len(nodes) > MAX_NODES:
        raise TestbedError(f"nodes: {len(nodes)} are too many for one machine; use {MAX_NODES} at most")
    return tuple(nodes)


DEFAULT_NODES = "a100:8,h20:8,none"


def state_root() -> Path:
    """Folder of all clusters' state: BALLAST_TESTBED_STATE, else XDG_STATE_HOME's, else ~/.local/state's `ballast`."""
    override = os.environ.get("BALLAST_TESTBED_STATE")
    if override:
        return Path(override).absolute()
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "ballast" / "testbed"


def cache_root() -> Path:
    """Folder of what is built once and kept: XDG_CACHE_HOME's, else ~/.cache's `ballast/testbed`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ballast" / "testbed"


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterPaths:
    """Where one cluster keeps its files. Everything but the lock lies under `root`."""

    root: Path

    @classmethod
    def of(cls, name: str, base: Path | None = None) -> Self:
        root = (base or state_root()) / parse_name(name)
        if len(os.fsencode(root)) > MAX_STATE_PATH_BYTES:
            raise TestbedError(f"{root} is too long for Unix sockets; set BALLAST_TESTBED_STATE to a shorter folder")
        return cls(root)

    @property
    def lock(self) -> Path:
        return self.root.with_name(self.root.name + ".lock")

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def init_record(self) -> Path:
        return self.root / "init.json"

    @property
    def progress(self) -> Path:
        return self.root / "progress"

    @property
    def ready(self) -> Path:
        return self.root / "ready"

    @property
    def failed(self) -> Path:
        return self.root / "failed"

    @property
    def outages(self) -> Path:
        """One file for each program that is to start again once it has been killed: after how many seconds."""
        return self.root / "outages"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    def node(self, name: str) -> Path:
        return self.root / "node" / name

    def containerd_socket(self, name: str) -> Path:
        return self.node(name) / "c.sock"

    def user_kubeconfig(self, user: str) -> Path:
        return self.pki / f"{user}.kubeconfig"


def pool_nodes(nodes: Sequence[NodeSpec], hardware: str) -> list[str]:
    """Names of the nodes that carry this hardware label."""
    return [node.name for node in nodes if node.hardware == hardware]
