"""What the operator's administrator sets; users write resources instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GatewayDefaults:
    """For gateway pods whose ServingPool leaves these fields out."""

    image: str
    """Image with the `ballast` command; the operator's own by default."""
    image_pull_policy: str | None = None
    """As in a container; None leaves it to Kubernetes."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets, in each ServingPool's namespace, for the registry of the image."""
    scrape_annotations: bool = False
    """Whether their pods say `prometheus.io/scrape`, for a Prometheus without PodMonitors."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of one operator process."""

    gateway: GatewayDefaults
    """Defaults of gateway pods."""
    network_policies: bool = True
    """Whether NetworkPolicies keep the pod API to the gateways."""
    admin_from: tuple[Mapping[str, object], ...] = ()
    """Who may reach gateways' admin port, as `from` of a NetworkPolicy has it; empty: everybody."""
    namespaces: tuple[str, ...] = ()
    """Namespaces that are served; empty serves all."""
    resync_s: float = 60.0
    """Seconds between two looks at every resource, for what no watch reports: CRDs and Gateways that appear."""
    workers: int = 4
    """Resources that are reconciled at the same time."""
    lease: tuple[str, str] | None = None
    """Namespace and name of the Lease by which one of several operators works; None: this one works at once."""
    metrics_port: int = 0
    """Port of /metrics; 0 serves none."""
    health_port: int = field(default=8080)
    """Port of /healthz."""
    request_timeout_s: float = 30.0
    """Seconds until a request to the API server counts as failed."""
