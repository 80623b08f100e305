"""Ballast itself on the cluster: the chart, installed once for all scenarios."""

import dataclasses
from pathlib import Path

from kit.cluster import Cluster
from kit.commands import Kubectl

CHART = Path(__file__).resolve().parents[2] / "charts" / "ballast"
NAMESPACE = "ballast-system"
NAME = "ballast"


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """An installed chart."""

    cluster: Cluster
    kubectl: Kubectl
    """In the release's namespace."""

    def upgrade(self, *values: str, chart: Path = CHART) -> None:
        """`helm upgrade --install` with these `key=value` settings beside the scenarios' own; waits until it is up."""
        repository, _, tag = self.cluster.images.ballast.rpartition(":")
        settings = [
            f"image.repository={repository}",
            f"image.tag={tag}",
            "image.pullPolicy=IfNotPresent",
            "crds.keep=false",
            *values,
        ]
        self.cluster.helm.within(NAMESPACE).run(
            "upgrade", "--install", NAME, str(chart), "--wait", "--timeout=180s", *(f"--set={s}" for s in settings),
            timeout_s=240,
        )  # fmt: skip

    def uninstall(self) -> None:
        """Remove the release, CRDs included, and its namespace."""
        self.cluster.helm.within(NAMESPACE).run("uninstall", NAME, "--ignore-not-found", "--wait", timeout_s=240)
        self.cluster.kubectl.delete("namespace", NAMESPACE)


def install(cluster: Cluster) -> Release:
    """Install the chart into a namespace that enforces Pod Security "restricted"."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "serving.ballast.dev/e2e": "true"}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    release = Release(cluster, cluster.kubectl.within(NAMESPACE))
    release.upgrade()
    return release
