"""The cluster that the scenarios run on: the test bed, kind, or a user's test cluster."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from kit.commands import Helm, Kubectl

HARDWARE_LABEL = "serving.ballast.dev/hardware"


@dataclasses.dataclass(frozen=True, slots=True)
class Images:
    """Full image names. Variables change them: BALLAST_IMAGE, NEXT_BALLAST_IMAGE, ENVOY_IMAGE, ENVOY_GATEWAY_IMAGE,
    LEADER_WORKER_SET_IMAGE."""

    ballast: str = "localhost/ballast:dev"
    next_ballast: str = "localhost/ballast:next"
    """What is upgraded to; it may be the same image by another name."""
    envoy: str = "localhost/envoy:1"
    envoy_gateway: str = "localhost/envoy-gateway:1"
    leader_worker_set: str = "localhost/leader-worker-set:1"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        names = {field.name: environment.get(f"{field.name.upper()}_IMAGE") for field in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in names.items() if value})


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """A reachable cluster. `is_testbed`: this process is in its network and may call Services and pods itself."""

    kubeconfig: Path
    kubectl: Kubectl
    helm: Helm
    images: Images
    is_testbed: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The cluster that KUBECONFIG names, or None."""
        value = environment.get("KUBECONFIG")
        if not value:
            return None
        path = Path(value)
        images = Images.from_environment(environment)
        return cls(path, Kubectl(path), Helm(path), images, "BALLAST_TESTBED_NAME" in environment)

    def hardware_nodes(self, hardware: str) -> set[str]:
        """Names of the nodes of one hardware pool."""
        return {node["metadata"]["name"] for node in self.kubectl.items("nodes", f"{HARDWARE_LABEL}={hardware}")}
