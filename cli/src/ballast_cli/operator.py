"""`ballast operator`: run the Kubernetes operator."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer


class LogLevel(StrEnum):
    """Least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class PullPolicy(StrEnum):
    """As in a container."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


def _peers(text: str) -> tuple[dict[str, object], ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise typer.BadParameter("must be a JSON list of objects", param_hint="--gateway-admin-from")
    return tuple(found)


def _lease(text: str) -> tuple[str, str] | None:
    from ballast_api.common import Namespace, ObjectName

    namespace, _, name = text.partition("/")
    if bool(namespace) is not bool(name) or "/" in name:
        raise typer.BadParameter("must be NAMESPACE/NAME", param_hint="--lease")
    if not name:
        return None
    return _checked("--lease", namespace, Namespace), _checked("--lease", name, ObjectName)


def _checked(option: str, value: str, kind: Any) -> str:
    """The value. Raises `typer.BadParameter`, in the API's words, if it is none of this annotated type."""
    from pydantic import TypeAdapter, ValidationError

    from ballast_api.errors import explain

    try:
        return str(TypeAdapter(kind).validate_python(value))
    except ValidationError as error:
        raise typer.BadParameter(explain(error)[0].message, param_hint=option) from None


def operator(
    *,
    gateway_image: Annotated[
        str,
        typer.Option(
            envvar="BALLAST_GATEWAY_IMAGE", help="Image of gateways whose ServingPool names none; has `ballast` inside."
        ),
    ],
    gateway_image_pull_policy: Annotated[
        PullPolicy | None,
        typer.Option(envvar="BALLAST_GATEWAY_IMAGE_PULL_POLICY", help="Its pull policy; by default Kubernetes' rule."),
    ] = None,
    gateway_image_pull_secret: Annotated[
        list[str] | None,
        typer.Option(
            envvar="BALLAST_GATEWAY_IMAGE_PULL_SECRETS",
            help="Secret, in each ServingPool's namespace, for its registry; may be given again.",
        ),
    ] = None,
    gateway_scrape_annotations: Annotated[
        bool,
        typer.Option(
            envvar="BALLAST_GATEWAY_SCRAPE_ANNOTATIONS",
            help="Annotate gateway pods with prometheus.io/scrape, for a Prometheus without PodMonitors.",
        ),
    ] = False,
    namespace: Annotated[
        list[str] | None,
        typer.Option(envvar="BALLAST_NAMESPACES", help="Namespace to serve; may be given again. Default: all."),
    ] = None,
    network_policies: Annotated[
        bool,
        typer.Option(
            envvar="BALLAST_NETWORK_POLICIES", help="Write NetworkPolicies that keep the pod API to the gateways."
        ),
    ] = True,
    gateway_admin_from: Annotated[
        str,
        typer.Option(
            envvar="BALLAST_GATEWAY_ADMIN_FROM",
            help="Who may reach gateways' admin port: JSON, as `from` of a NetworkPolicy. Default: everybody.",
        ),
    ] = "[]",
    lease: Annotated[
        str,
        typer.Option(
            envvar="BALLAST_LEASE",
            help="NAMESPACE/NAME of a Lease: of several operators its holder works. Default: none is asked for.",
        ),
    ] = "",
    resync_s: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds between two looks at each object, for changes that no watch reports."),
    ] = 60.0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Objects reconciled at the same time.")] = 4,
    health_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of /healthz.")] = 8080,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of /metrics; 0 serves none.")] = 0,
    log_level: Annotated[LogLevel, typer.Option(help="Least severe level that is logged.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="Text for people, JSON for log stores.")] = LogFormat.TEXT,
) -> None:
    """Run the operator: ServingPools become Deployments, Services and a gateway.

    Credentials come from the pod's ServiceAccount, outside of a cluster from KUBECONFIG.
    """
    from ballast_api.common import Namespace, ObjectName
    from ballast_api.serving_pool import ImageName
    from ballast_operator.api.api_failure import ApiFailure
    from ballast_operator.run import configure_logs, run
    from ballast_operator.settings import GatewayDefaults, OperatorSettings

    if metrics_port == health_port:
        raise typer.BadParameter(f"{health_port} is --health-port; give each its own", param_hint="--metrics-port")
    secrets = gateway_image_pull_secret or ()
    settings = OperatorSettings(
        gateway=GatewayDefaults(
            image=_checked("--gateway-image", gateway_image, ImageName),
            image_pull_policy=gateway_image_pull_policy.value if gateway_image_pull_policy else None,
            image_pull_secrets=tuple(_checked("--gateway-image-pull-secret", each, ObjectName) for each in secrets),
            scrape_annotations=gateway_scrape_annotations,
        ),
        network_policies=network_policies,
        admin_from=_peers(gateway_admin_from),
        lease=_lease(lease),
        namespaces=tuple(_checked("--namespace", each, Namespace) for each in namespace or ()),
        resync_s=resync_s,
        workers=workers,
        health_port=health_port,
        metrics_port=metrics_port,
    )
    configure_logs(log_level.value, log_format.value)
    try:
        run(settings)
    except ApiFailure as error:
        typer.echo(f"ballast operator: {error}", err=True)
        raise typer.Exit(1) from error
