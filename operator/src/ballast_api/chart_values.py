"""Values of the Helm chart: `values.yaml`, its JSON schema and the reference come from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ballast_api.common import DNS_LABEL, ApiModel, ImagePullPolicy, NonEmptyStr, PositiveInt, Seq, StringMap

Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
FreeObject = dict[str, Any]


class ImageValues(ApiModel):
    """The image of Ballast: one image holds operator, gateway and engine-sim."""

    repository: NonEmptyStr = "localhost/ballast"
    """Registry and name of the image. The default is what the project's Dockerfile is built as."""
    tag: str = "dev"
    """Tag of the image. Empty takes the chart's appVersion."""
    pull_policy: ImagePullPolicy = "IfNotPresent"
    """imagePullPolicy of the operator, and of the gateways that run its default image."""


class CrdValues(ApiModel):
    """The CustomResourceDefinitions are templates, so that `helm upgrade` upgrades them (it never does for `crds/`)."""

    enabled: bool = True
    """Whether the chart installs them. Set false where another release or `kubectl apply -f crds/` does."""
    keep: bool = True
    """Whether they, and with them every ServingPool, stay when the chart is uninstalled."""


class ServiceAccountValues(ApiModel):
    """The operator's identity."""

    create: bool = True
    """Whether the chart creates the ServiceAccount. If false, one called `name` must exist."""
    name: str = ""
    """Name of the ServiceAccount. Empty takes the full name of the release."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations of the ServiceAccount, such as those for cloud identities."""


class GatewayValues(ApiModel):
    """Defaults for the gateways that the operator creates."""

    image: str = ""
    """Image of the gateways whose ServingPool names none. Empty takes the operator's image."""
    admin_from: Seq[FreeObject] = ()
    """Who may reach the gateways' port 9090 with its metrics and its admin API, as `from` of a NetworkPolicy has it,
    such as the namespace of Prometheus; the operator may, too. It takes a network that enforces policies, and
    `networkPolicies`. Empty leaves the port open to every pod."""


def _away_from_gpus() -> FreeObject:
    gpu = {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]}
    preferred = [{"weight": 100, "preference": {"matchExpressions": [gpu]}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _small_resources() -> FreeObject:
    return {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


class ChartValues(ApiModel):
    """Values of the chart `ballast`."""

    image: ImageValues = Field(default_factory=ImageValues)
    """The image that holds operator, gateway and engine-sim."""
    replicas: PositiveInt = 1
    """Number of operator pods. One of them works, by a Lease; the others take over within some 15 s of its end, or at
    once when it ends by itself."""
    image_pull_secrets: Seq[FreeObject] = ()
    """Secrets for a private registry, such as `[{name: my-secret}]`. The operator's pod, gateways and agents use them,
    each in its own namespace. Empty uses none."""
    name_override: str = ""
    """Replaces the chart's name in the names of the objects. Empty keeps it."""
    fullname_override: str = ""
    """Replaces the whole name of the objects. Empty builds it from the release and the chart."""
    watch_namespaces: Seq[Namespace] = ()
    """Namespaces whose ServingPools are served; empty means all. With a list the operator gets Roles there;
    cluster-wide it reads HardwareProfiles, Gateways, CustomResourceDefinitions and namespaces, and writes the status of
    HardwareProfiles."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that the operator logs."""
    log_format: Literal["text", "json"] = "text"
    """Form of a log line: `text` for people, `json` for log stores."""
    crds: CrdValues = Field(default_factory=CrdValues)
    """The CustomResourceDefinitions of Ballast."""
    gateway: GatewayValues = Field(default_factory=GatewayValues)
    """Defaults for the gateways that the operator creates."""
    network_policies: bool = True
    """Whether the operator writes NetworkPolicies: the pod API is then for gateways only, every other port stays open
    to all. Policies add up, so in namespaces that deny by default they open those ports: set false there."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    """Port of the operator's metrics, at /metrics: looks by result and time, conditions, and wanted and ready instances
    by pool. 0 serves none."""
    aggregate_roles: bool = True
    """Whether Kubernetes' own ClusterRoles get rights on Ballast's resources: view reads them, edit and admin write
    ServingPools, SchedulingPolicies and ServiceLevelObjectives. HardwareProfiles stay with cluster admins."""
    service_account: ServiceAccountValues = Field(default_factory=ServiceAccountValues)
    """The operator's identity in the cluster."""
    resources: FreeObject = Field(default_factory=_small_resources)
    """Resource requests and limits of the operator's container."""
    node_selector: StringMap = Field(default_factory=dict)
    """Labels of the nodes that the operator may run on. Empty allows all."""
    tolerations: Seq[FreeObject] = ()
    """Taints that the operator tolerates. Empty tolerates none."""
    affinity: FreeObject = Field(default_factory=_away_from_gpus)
    """Affinity of the operator's pod. By default nodes without NVIDIA GPUs are preferred; null sets none."""
    priority_class_name: str = ""
    """Priority class of the operator's pod. Empty takes the cluster's default."""
    pod_annotations: StringMap = Field(default_factory=dict)
    """Annotations to add to the operator's pod."""
    pod_labels: StringMap = Field(default_factory=dict)
    """Labels to add to the operator's pod."""
    global_: FreeObject = Field(default_factory=dict, alias="global")
    """Values that Helm shares with subcharts. The chart does not read them."""
