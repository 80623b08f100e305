"""Values of the Helm chart: `values.yaml`, its JSON schema and the reference come from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ballast_api.common import ApiModel, ImagePullPolicy, Namespace, NonEmptyStr, Port, PositiveInt, Seq, StringMap
from ballast_api.names import GATEWAY_REQUESTS, PORT_ENGINE

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


class AdmissionValues(ApiModel):
    """A ValidatingAdmissionPolicy: what is said of deletions that take something away from ServingPools."""

    enabled: bool = True
    """Whether the chart installs the policy. It takes Kubernetes 1.30; the chart leaves it out of older clusters."""
    action: Literal["Deny", "Warn"] = "Deny"
    """What happens to the deletion of a SchedulingPolicy, ServiceLevelObjective or HardwareProfile that ServingPools
    name: it is refused (Deny), or done with a warning to whoever asked (Warn). The annotation
    `serving.ballast.dev/allow-deletion: "true"` on the object lets it go."""


class ServiceAccountValues(ApiModel):
    """The operator's identity."""

    create: bool = True
    """Whether the chart creates the ServiceAccount. If false, one called `name` must exist."""
    name: str = ""
    """Name of the ServiceAccount. Empty takes the full name of the release."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations of the ServiceAccount, such as those for cloud identities."""


def _gateway_resources() -> FreeObject:
    return {"requests": {**GATEWAY_REQUESTS}}


class GatewayOnlyValues(ApiModel):
    """A gateway in front of vLLM pods that are there already, in place of the operator."""

    enabled: bool = False
    """Whether the chart installs that gateway and nothing else: no operator, no CustomResourceDefinitions."""
    selector: str = ""
    """Label selector of the vLLM pods in the release's namespace, as `kubectl get pods -l` has it. Roles come from the
    label `llm-d.ai/role` or `serving.ballast.dev/role`; pods with neither are left out. Required."""
    port: Port = PORT_ENGINE
    """Port of the pods' HTTP API."""
    served_names: Seq[NonEmptyStr] = ()
    """Names of the model, as clients send them. At least one."""
    replicas: PositiveInt = 2
    """Gateway pods. Each decides by what it sees itself and by the pods' metrics."""
    settings: FreeObject = Field(default_factory=dict)
    """More settings of the gateway (docs/reference/gateway-settings.md), such as `policy`, `profiles` and `limits`. Not
    `face`, `discovery` and `listeners`, which are given."""
    volumes: Seq[FreeObject] = ()
    """Volumes to add to the gateways' pods, as a pod has them, such as a Secret for `keys.file`."""
    volume_mounts: Seq[FreeObject] = ()
    """Where the gateways' container has them. Not below /etc/ballast, which has the settings."""
    resources: FreeObject = Field(default_factory=_gateway_resources)
    """Resource requests and limits of the gateways' container."""


class GatewayValues(ApiModel):
    """Defaults for the gateways that the operator creates."""

    image: str = ""
    """Image of the gateways whose ServingPool names none. Empty takes the operator's image."""
    only: GatewayOnlyValues = Field(default_factory=GatewayOnlyValues)
    """A gateway in front of vLLM pods that are there already (docs/start/existing-pods.md)."""
    admin_from: Seq[FreeObject] = ()
    """Who may reach the gateways' port 9090 with its metrics and its admin API, as `from` of a NetworkPolicy has it,
    such as the namespace of Prometheus; the operator may, too. With `gateway.only` it is for that gateway. It takes a
    network that enforces policies, and `networkPolicies`. Empty leaves the port open to every pod."""


Where = Literal["Auto", "Always", "Never"]


def _sidecar() -> dict[str, str]:
    return {"grafana_dashboard": "1"}


class MonitoringValues(ApiModel):
    """What Prometheus and Grafana find by themselves. `Auto`: where the cluster has that kind when Helm renders."""

    pod_monitors: Where = "Auto"
    """PodMonitors for the operator and for all gateways that it serves, or for the one of `gateway.only` (Prometheus
    Operator)."""
    prometheus_rules: Where = "Auto"
    """A PrometheusRule with recording rules and alerts (Prometheus Operator); with `gateway.only` without those that
    ask an operator."""
    labels: StringMap = Field(default_factory=dict)
    """Labels of PodMonitors and PrometheusRule, by which your Prometheus selects them, such as
    `release: kube-prometheus-stack`."""
    interval: NonEmptyStr = "15s"
    """How often PodMonitors are scraped."""
    annotations: bool = True
    """Whether the pods of operator and gateways say `prometheus.io/scrape` where there are no PodMonitors. A change
    restarts gateways, one after another."""
    runbooks: str = ""
    """Address of the page of runbooks, to which alerts add `#` and their name. Empty: its path in the repository."""
    dashboards: bool = True
    """Whether dashboards are installed, as ConfigMaps that Grafana's sidecar finds; with `gateway.only` all but that of
    the operator."""
    dashboard_labels: StringMap = Field(default_factory=_sidecar)
    """Labels of those ConfigMaps."""
    dashboard_annotations: StringMap = Field(default_factory=dict)
    """Annotations of those ConfigMaps, such as `grafana_folder: Ballast`."""
    grafana_dashboards: Where = "Auto"
    """GrafanaDashboards that refer to those ConfigMaps (Grafana Operator)."""
    grafana_selector: FreeObject = Field(default_factory=dict)
    """`instanceSelector` of GrafanaDashboards. Empty: every Grafana of their namespace."""


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
    cluster-wide it reads HardwareProfiles, Gateways and GatewayClasses, and writes the status of HardwareProfiles."""
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
    to all. Policies add up, so in namespaces that deny by default they open those ports: set false there. With
    `gateway.only` the chart writes one if there is `gateway.adminFrom`."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    """Port of the operator's metrics, at /metrics: looks by result and time, conditions, and wanted and ready instances
    by pool. Not 8080, which answers probes. 0 serves none."""
    monitoring: MonitoringValues = Field(default_factory=MonitoringValues)
    """Dashboards, scrapes and alerts."""
    aggregate_roles: bool = True
    """Whether Kubernetes' own ClusterRoles get rights on Ballast's resources: view reads them, edit and admin write
    ServingPools, SchedulingPolicies and ServiceLevelObjectives. HardwareProfiles stay with cluster admins."""
    admission: AdmissionValues = Field(default_factory=AdmissionValues)
    """Guards what ServingPools name against deletion."""
    service_account: ServiceAccountValues = Field(default_factory=ServiceAccountValues)
    """The operator's identity in the cluster."""
    resources: FreeObject = Field(default_factory=_small_resources)
    """Resource requests and limits of the operator's container."""
    node_selector: StringMap = Field(default_factory=dict)
    """Labels of the nodes that the operator may run on, or the gateways of `gateway.only`. Empty allows all."""
    tolerations: Seq[FreeObject] = ()
    """Taints that the operator tolerates, or the gateways of `gateway.only`. Empty tolerates none."""
    affinity: FreeObject = Field(default_factory=_away_from_gpus)
    """Affinity of the operator's pod, or of those of `gateway.only`. By default nodes without NVIDIA GPUs are
    preferred; null sets none."""
    priority_class_name: str = ""
    """Priority class of the operator's pod, or of those of `gateway.only`. Empty takes the cluster's default."""
    pod_annotations: StringMap = Field(default_factory=dict)
    """Annotations to add to the operator's pod, or to those of `gateway.only`."""
    pod_labels: StringMap = Field(default_factory=dict)
    """Labels to add to the operator's pod, or to those of `gateway.only`."""
    global_: FreeObject = Field(default_factory=dict, alias="global")
    """Values that Helm shares with subcharts. The chart does not read them."""
