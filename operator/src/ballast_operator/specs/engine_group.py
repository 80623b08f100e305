"""The LeaderWorkerSet of a pool whose instances span several nodes.

An instance is a group of pods, one for each node: vLLM's multi-node `mp` executor (vLLM 0.32), whose tensor parallel
ranks are spread over the nodes. NixlConnector pulls from no engine with pipeline parallel stages, so there are none.
The leader runs API server, scheduler and NIXL's side channel, and is the endpoint; the others compute, and no selector
of engines finds them. A group starts, fails and is replaced as a whole. When its leader ends, the others stay until it
has: they belong to it.
"""

from __future__ import annotations

from typing import Any, Final

from ballast_api import names
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import LEADER_WORKER_SET, Manifest
from ballast_operator.rollouts.allowances import Allowance
from ballast_operator.specs.agent_container import without_agent
from ballast_operator.specs.engine_deployment import with_revision
from ballast_operator.specs.meta import Owner, child, content_hash, with_labels

MAX_NAME: Final = 48
"""Characters: a StatefulSet of this name gives its pods a label of it and a hash, 63 at most."""
WORKER_COMPONENT: Final = "engine-worker"
"""Of the pods that are no endpoints."""
_LEADER_ADDRESS: Final = "$(LWS_LEADER_ADDRESS)"
"""The controller sets this variable in all containers, and the next one."""
_WORKER_INDEX: Final = "$(LWS_WORKER_INDEX)"


def engine_group(
    owner: Owner,
    spec: ServingPoolSpec,
    pool: PoolSpec,
    template: Manifest,
    *,
    name: str,
    revision: str,
    replicas: int,
    allowed: Allowance,
) -> Manifest:
    """LeaderWorkerSet of the engines of `pool` that are of this KV revision. `template`: from `engine_template`."""
    labels = names.engine_labels(owner.name, pool.name, names.core_role(pool.role))
    mark = {names.LABEL_REVISION: revision}
    group = child(
        LEADER_WORKER_SET,
        owner,
        name,
        "engine",
        spec={
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            "rolloutStrategy": {
                "type": "RollingUpdate",
                # As numbers: a set refuses percentages that come to 0 and 0, where a Deployment takes 0 and 1.
                "rollingUpdateConfiguration": {"maxSurge": allowed.surge, "maxUnavailable": allowed.unavailable},
            },
            "leaderWorkerTemplate": {
                "size": pool.nodes_per_instance,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": with_revision(with_labels(_leader(template, pool.nodes_per_instance), mark)),
                "workerTemplate": with_revision(with_labels(_worker(template, pool.nodes_per_instance), mark)),
            },
        },
    )
    return with_labels(group, labels | mark)


def engine_group_name(first: str, nodes: int, revision: str) -> str:
    """A DNS label that no Service of the pool has: the controller makes a headless one of it for the groups' pods.

    `first`: the name of the pool's objects. It is cut where it is long.
    """
    name = f"{first}-{nodes}n-{revision}"
    if len(name) <= MAX_NAME:
        return name
    mark = content_hash(name)
    return f"{first[: MAX_NAME - len(mark) - 1]}-{mark}"


def nodes_of(group: Manifest) -> int:
    """Nodes of one instance of a LeaderWorkerSet."""
    return int(group["spec"].get("leaderWorkerTemplate", {}).get("size", 1))


def _leader(template: Manifest, nodes: int) -> Manifest:
    return _with_engine(template, template["spec"], [*_group_arguments(nodes), "--node-rank", "0"])


def _worker(template: Manifest, nodes: int) -> Manifest:
    """The leader's pod without all that an endpoint has: labels, agent, ports, probes, time to end."""
    pod = without_agent(template["spec"])
    pod.pop("terminationGracePeriodSeconds", None)
    arguments = [*_group_arguments(nodes), "--node-rank", _WORKER_INDEX, "--headless"]
    worker = _with_engine(template, pod, arguments, without=_OF_ENDPOINTS)
    metadata = template["metadata"]
    kept = {key: value for key, value in metadata["annotations"].items() if key != names.ANNOTATION_POD_API}
    labels = {key: value for key, value in metadata["labels"].items() if key not in _OF_INSTANCES}
    labels[names.APP_COMPONENT] = WORKER_COMPONENT
    return {**worker, "metadata": {**metadata, "labels": labels, "annotations": kept}}


_OF_INSTANCES: Final = (names.LABEL_POOL, names.LABEL_ROLE, names.LABEL_LLMD_ROLE)
"""Labels by which instances are counted, and given roles."""
_OF_ENDPOINTS: Final = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")


def _group_arguments(nodes: int) -> list[str]:
    return ["--nnodes", str(nodes), "--master-addr", _LEADER_ADDRESS, "--master-port", str(names.PORT_MASTER)]


def _with_engine(template: Manifest, pod: Manifest, arguments: list[str], *, without: tuple[str, ...] = ()) -> Manifest:
    """The template with this pod, whose engine has these arguments after its own: nobody may set others."""

    def changed(container: dict[str, Any]) -> dict[str, Any]:
        if container["name"] != names.ENGINE_CONTAINER:
            return container
        kept = {key: value for key, value in container.items() if key not in without}
        return {**kept, "args": [*container.get("args", ()), *arguments]}

    return {**template, "spec": {**pod, "containers": [changed(each) for each in pod["containers"]]}}
