"""The LeaderWorkerSet controller on the test bed, by its own chart."""

import os
from pathlib import Path

from kit.cluster import Cluster
from testbed import images
from testbed.charts import lws_chart

NAMESPACE = "lws-system"
RELEASE = "lws"
"""The chart's certificates are of this name."""


def build() -> dict[str, Path]:
    """The image's archive, by its short name; takes minutes the first time."""
    return images.build_archives(["lws"], print)


def install(cluster: Cluster, folder: Path, archives: dict[str, Path]) -> None:
    """Install controller, webhooks and CRD; waits until its pod is ready, which its webhooks may not be yet."""
    images.load(os.environ["BALLAST_TESTBED_NAME"], archives, print)
    repository, _, tag = images.LWS_IMAGE.rpartition(":")
    settings = [
        f"image.manager.repository={repository}",
        f"image.manager.tag={tag}",
        "image.manager.pullPolicy=IfNotPresent",
        "resources.requests.cpu=20m",
        "resources.requests.memory=64Mi",
    ]
    cluster.helm.within(NAMESPACE).run(
        "install", RELEASE, str(lws_chart(folder / "lws")), "--create-namespace", "--wait", "--timeout=180s",
        *(f"--set-string={each}" for each in settings), timeout_s=240,
    )  # fmt: skip


def uninstall(cluster: Cluster) -> None:
    """Remove it; its CRD takes all sets along."""
    cluster.helm.within(NAMESPACE).run("uninstall", RELEASE, "--ignore-not-found", "--wait", timeout_s=240)
    cluster.kubectl.delete("namespace", NAMESPACE)
