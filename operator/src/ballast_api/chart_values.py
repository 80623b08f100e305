"""Values of the Helm chart: `values.yaml`, its JSON schema and the reference come from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ballast_api.common import DNS_LABEL, ApiModel, ImagePullPolicy, NonEmptyStr, Seq, StringMap

Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
FreeObject = dict[str, Any]


class ImageValues(ApiModel):
    """The image of Ballast: one image holds operator, gateway and engine-sim."""

    repository: NonEmptyStr = "localhost/ballast"
    """Registry and name. The default is what the project's Dockerfile is built as."""
    tag: str = "dev"
    """Tag; empty takes the chart's appVersion."""
    pull_policy: ImagePullPolicy = "IfNotPresent"
    """As in a container."""


class CrdValues(ApiModel):
    """The CustomResourceDefinitions are templates, so that `helm upgrade` upgrades them (it never does for `crds/`)."""

    enabled: bool = True
    """Install them with the chart. Set false where somebody else owns them, such as a second release or
    `kubectl apply -f crds/`."""
    keep: bool = True
    """Leave them, and with them every ServingPool, in place when the chart is uninstalled."""


class ServiceAccountValues(ApiModel):
    """The operator's identity."""

    create: bool = True
    """Create it. Without, `name` must exist."""
    name: str = ""
    """Its name; empty takes the name of the release."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations, for cloud identities."""


class GatewayValues(ApiModel):
    """Defaults for the gateways that the operator creates."""

    image: str = ""
    """Image of gateways whose ServingPool names none; empty takes the operator's."""


def _small_resources() -> FreeObject:
    return {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


class ChartValues(ApiModel):
    """Values of the chart `ballast`."""

    image: ImageValues = Field(default_factory=ImageValues)
    """The image."""
    image_pull_secrets: Seq[FreeObject] = ()
    """Secrets for a private registry: `[{name: my-secret}]`."""
    name_override: str = ""
    """Replaces the chart's name in object names."""
    fullname_override: str = ""
    """Replaces the whole name of the objects."""
    watch_namespaces: Seq[Namespace] = ()
    """Namespaces whose ServingPools are served; empty means all. With a list the operator gets Roles there and only
    reads HardwareProfiles and definitions cluster-wide."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that the operator logs."""
    log_format: Literal["text", "json"] = "text"
    """Text for people, JSON for log stores."""
    crds: CrdValues = Field(default_factory=CrdValues)
    """The CustomResourceDefinitions."""
    gateway: GatewayValues = Field(default_factory=GatewayValues)
    """Defaults for gateways."""
    service_account: ServiceAccountValues = Field(default_factory=ServiceAccountValues)
    """The operator's identity."""
    resources: FreeObject = Field(default_factory=_small_resources)
    """Resources of the operator."""
    node_selector: StringMap = Field(default_factory=dict)
    """Nodes that the operator may run on."""
    tolerations: Seq[FreeObject] = ()
    """Taints that the operator tolerates."""
    affinity: FreeObject = Field(default_factory=dict)
    """Affinity of the operator."""
    priority_class_name: str = ""
    """Priority class of the operator."""
    pod_annotations: StringMap = Field(default_factory=dict)
    """Annotations of the operator's pod."""
    pod_labels: StringMap = Field(default_factory=dict)
    """Labels of the operator's pod."""
    global_: FreeObject = Field(default_factory=dict, alias="global")
    """Helm's values shared by subcharts; not used here."""
