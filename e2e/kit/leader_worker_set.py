"""The real controller of LeaderWorkerSets on the cluster, by its own chart."""

from kit.cluster import Cluster
from kit.waiting import wait_until
from testbed.charts import leader_worker_set_chart

NAMESPACE = "lws-system"
_RELEASE = "lws"


def install(cluster: Cluster) -> None:
    """Install chart and CRD; waits until its controller runs and its webhooks have their certificates."""
    repository, _, tag = cluster.images.leader_worker_set.rpartition(":")
    values = {
        "image.manager.repository": repository,
        "image.manager.tag": tag,
        "image.manager.pullPolicy": "IfNotPresent",
        "resources.requests.cpu": "50m",
        "resources.requests.memory": "64Mi",
    }
    cluster.helm.within(NAMESPACE).run(
        "install", _RELEASE, str(leader_worker_set_chart()), "--create-namespace", "--wait", "--timeout=180s",
        *(f"--set={key}={value}" for key, value in values.items()), timeout_s=240,
    )  # fmt: skip
    webhooks = "mutatingwebhookconfiguration", "lws-mutating-webhook-configuration"
    wait_until(
        lambda: all(each["clientConfig"].get("caBundle") for each in cluster.kubectl.get(*webhooks)["webhooks"]),
        60,
        "LeaderWorkerSet's webhooks have their certificate",
    )


def uninstall(cluster: Cluster) -> None:
    """Remove it, its CRD too. Its LeaderWorkerSets must be deleted already."""
    cluster.helm.within(NAMESPACE).run("uninstall", _RELEASE, "--ignore-not-found", "--wait", timeout_s=240)
    cluster.kubectl.delete("namespace", NAMESPACE)
