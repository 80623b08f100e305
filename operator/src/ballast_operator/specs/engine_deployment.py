"""The Deployment of one pool."""

from __future__ import annotations

from typing import Final

from ballast_api import names
from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_api.pod_template import PodTemplateOverlay
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import DEPLOYMENT, Manifest
from ballast_operator.rollouts.allowances import Allowance
from ballast_operator.settings import GatewayDefaults
from ballast_operator.specs.agent_container import agent_container, without_pin
from ballast_operator.specs.ballast_image import pull_secrets
from ballast_operator.specs.engine_container import START_UP_S, engine_container, grace_period_s, volumes
from ballast_operator.specs.hold import hold_volume
from ballast_operator.specs.meta import Owner, child, content_hash, with_labels
from ballast_operator.specs.model_volume import model_volumes
from ballast_operator.specs.overlay import overlaid
from ballast_operator.specs.profiles import profile_volume
from ballast_operator.specs.security import pod_security
from ballast_operator.specs.token_mount import token_volume

REVISION_HISTORY: Final = 3


def engine_deployment(
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
    """Deployment of the engines of `pool` that are of this KV revision. `template`: from `engine_template`."""
    surge, unavailable = spec.rollout.max_surge, spec.rollout.max_unavailable
    if allowed.cut:  # else percentages stay what they are, and no scaling changes them
        surge, unavailable = allowed.surge, allowed.unavailable
    match = names.engine_match_labels(owner.name, pool.name)
    labels = names.engine_labels(owner.name, pool.name, names.core_role(pool.role))
    mark = {names.LABEL_REVISION: revision}
    # A selector cannot be changed, and the first Deployment of a pool may be of an older release.
    selector = match if name == names.pool_object_name(owner.name, pool.name) else match | mark
    deployment = child(
        DEPLOYMENT,
        owner,
        name,
        "engine",
        spec={
            "replicas": replicas,
            "revisionHistoryLimit": REVISION_HISTORY,
            "progressDeadlineSeconds": START_UP_S,
            "selector": {"matchLabels": selector},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
            },
            "template": with_revision(with_labels(template, mark)),
        },
    )
    return with_labels(deployment, labels | mark)


def resized(workload: Manifest, replicas: int) -> Manifest:
    """What to apply to a workload of an older revision: its number of instances, and nothing else of it."""
    metadata = {key: workload["metadata"][key] for key in ("name", "namespace", "uid")}
    kind = {key: workload[key] for key in ("apiVersion", "kind")}
    return {**kind, "metadata": metadata, "spec": {"replicas": replicas}}


def engine_template(
    owner: Owner, spec: ServingPoolSpec, pool: PoolSpec, profile: HardwareProfileSpec, defaults: GatewayDefaults
) -> Manifest:
    """Pod template of an engine, beside its agent where the spec has agents, with the user's overlay."""
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_period_s(spec),
        "securityContext": pod_security(),
        "topologySpreadConstraints": [spread(names.engine_match_labels(owner.name, pool.name))],
        "containers": [engine_container(owner, spec, pool, profile)],
        "volumes": [
            *volumes(),
            profile_volume(owner.name, pool.hardware),
            hold_volume(owner.name),
            *model_volumes(spec.model),
        ],
    }
    annotations = {names.ANNOTATION_HARDWARE: pool.hardware}
    if spec.has_agent(pool):
        pod["initContainers"] = [agent_container(spec, defaults)]
        pod |= pull_secrets(defaults)
        pod["volumes"].append(token_volume(owner.name))
        annotations[names.ANNOTATION_POD_API] = str(names.PORT_POD_API)
    if profile.node_selector:
        pod["nodeSelector"] = dict(profile.node_selector)
    labels = names.engine_labels(owner.name, pool.name, names.core_role(pool.role))
    template = with_overlay({"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}, pool.template)
    return template if spec.has_agent(pool) else {**template, "spec": without_pin(template["spec"])}


def engine_of(template: Manifest) -> Manifest:
    """The container of the engine in a pod template."""
    return next(each for each in template["spec"]["containers"] if each["name"] == names.ENGINE_CONTAINER)


def with_overlay(template: Manifest, overlay: PodTemplateOverlay | None) -> Manifest:
    """The template with the user's overlay, where there is one."""
    if overlay is None:
        return template
    return overlaid(template, overlay.model_dump(mode="json", by_alias=True, exclude_unset=True))


def with_revision(template: Manifest) -> Manifest:
    """The template, annotated with a hash of itself."""
    metadata = template["metadata"]
    annotations = {**metadata["annotations"], names.ANNOTATION_REVISION: content_hash(template)}
    return {**template, "metadata": {**metadata, "annotations": annotations}}


def spread(match: dict[str, str]) -> Manifest:
    """Prefer nodes that have fewest pods of the same kind and revision."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": match},
        "matchLabelKeys": ["pod-template-hash"],
    }
