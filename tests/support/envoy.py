"""A real Envoy on loopback in front of a picker: listener -> ext_proc -> the endpoint that the picker names."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from ballast_operator.specs.routes import UNAVAILABLE

BINARY = Path(__file__).parents[2] / ".tools/envoy/bin/envoy"
"""Installed by `make envoy`."""

_TYPE = "type.googleapis.com/envoy.extensions"
_TLS: dict[str, Any] = {
    "transport_socket": {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{_TYPE}.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2"]},
        },
    }
}

needs_envoy = pytest.mark.skipif(
    not BINARY.exists() and not os.environ.get("CI"), reason="no Envoy: `make envoy` installs it"
)
"""With CI set, a missing Envoy fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySetup:
    """What differs between the set-ups."""

    request_body: str = "FULL_DUPLEX_STREAMED"
    response_body: str | None = "FULL_DUPLEX_STREAMED"
    """None skips the response altogether."""
    steer: Literal["header", "metadata", "override-host", "override-host-metadata"] = "header"
    """How Envoy finds the endpoint that was picked."""
    hosts: tuple[str, ...] = ()
    """For override-host: the endpoints that Envoy itself knows."""
    subset: str | None = None
    """Client header that becomes the subset hint, as Envoy's header-to-metadata filter writes it."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of the ext_proc filter."""
    trailers: bool = True
    """Whether the response's trailers are shown, where the response is."""
    survives: bool = False
    """With everything that docs/picker.md recommends against pickers that die or hang."""
    tls: bool = False
    """Whether Envoy speaks TLS to the picker, and to its health, as gateways do by GIE: any certificate will do."""
    fail_open: bool = False
    retries: bool = False
    """Whether a request whose endpoint takes no connection is sent again, as the operator has Envoy Gateway do it."""
    web_sockets: bool = False
    """Whether Envoy lets clients go on as WebSockets, as Envoy Gateway has it."""
    observer: str | None = None
    """Response body mode of a second ext_proc filter in observability mode."""

    def without_response(self) -> EnvoySetup:
        return replace(self, response_body=None)


@dataclass(frozen=True, slots=True)
class PickerAt:
    """Where a picker listens on loopback."""

    port: int
    health_port: int | None = None


@dataclass(frozen=True, slots=True)
class RunningEnvoy:
    url: str
    admin: str
    pid: int


@asynccontextmanager
async def envoy(
    pickers: int | Sequence[PickerAt] | None, setup: EnvoySetup, folder: Path
) -> AsyncIterator[RunningEnvoy]:
    """Start Envoy on free ports; end it by its pid. Without pickers (or the port of one) it has no ext_proc filter.

    Its log stays in `folder`, and is shown when Envoy does not come up.
    """
    assert BINARY.exists(), "no Envoy: run `make envoy`"
    process = _start(bootstrap(pickers, setup), folder)
    try:
        yield await _wait_ready(process, folder)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(config: dict[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "envoy.json").write_text(json.dumps(config))
    command = [str(BINARY), "-c", "envoy.json", "--concurrency", "1", "--disable-hot-restart", "-l", "info"]
    with (folder / "envoy.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--admin-address-path", "admin-address.txt"], cwd=folder, stdout=log, stderr=log
        )


def _admin_address(process: subprocess.Popen[bytes], folder: Path) -> str | None:
    if process.poll() is not None:
        raise AssertionError(f"Envoy ended:\n{(folder / 'envoy.log').read_text()[-4000:]}")
    file = folder / "admin-address.txt"
    return f"http://{file.read_text()}" if file.exists() else None


async def _wait_ready(process: subprocess.Popen[bytes], folder: Path) -> RunningEnvoy:
    async with asyncio.timeout(30), httpx.AsyncClient() as client:
        while True:
            admin = _admin_address(process, folder)
            try:
                if admin and (await client.get(f"{admin}/ready")).text.strip() == "LIVE":
                    listeners = (await client.get(f"{admin}/listeners", params={"format": "json"})).json()
                    at = listeners["listener_statuses"][0]["local_address"]["socket_address"]
                    return RunningEnvoy(f"http://127.0.0.1:{at['port_value']}", admin, process.pid)
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


def bootstrap(pickers: int | Sequence[PickerAt] | None, setup: EnvoySetup) -> dict[str, Any]:
    """Envoy's configuration."""
    at = [PickerAt(pickers)] if isinstance(pickers, int) else pickers
    filters: list[dict[str, Any]] = []
    if setup.subset is not None:
        filters.append(_subset_filter(setup.subset))
    clusters = [_destination(setup)]
    if at:
        if setup.survives:
            filters.append(_unavailable())
        filters.append(_ext_proc(setup))
        if setup.observer is not None:
            filters.append(_observer(setup.observer))
        clusters.append(_picker(at, survives=setup.survives) | (_TLS if setup.tls else {}))
    filters.append({"name": "router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}})
    action: dict[str, Any] = {"cluster": "destination", "timeout": "60s"}
    if setup.retries:
        action["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream",
            "num_retries": 2,
            "host_selection_retry_max_attempts": 5,
            "retry_host_predicate": [_previous_hosts()],
        }
    route = {"match": {"prefix": "/"}, "route": action}
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "AUTO",
        "http_protocol_options": {"enable_trailers": True},
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": filters,
        **({"upgrade_configs": [{"upgrade_type": "websocket"}]} if setup.web_sockets else {}),
    }
    listener = {
        "name": "in",
        "address": _address("127.0.0.1", 0),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    return {
        "admin": {"address": _address("127.0.0.1", 0)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def _previous_hosts() -> dict[str, Any]:
    """As Envoy Gateway has it with every retry."""
    kind = f"{_TYPE}.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": kind}}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _ext_proc(setup: EnvoySetup) -> dict[str, Any]:
    mode = {
        "request_header_mode": "SEND",
        "request_body_mode": setup.request_body,
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND" if setup.response_body else "SKIP",
        "response_body_mode": setup.response_body or "NONE",
        "response_trailer_mode": "SEND" if setup.response_body and setup.trailers else "SKIP",
    }
    service: dict[str, Any] = {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"}
    if setup.survives:
        service["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,reset,unavailable",
            "num_retries": 3,
            "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
        }
    config = {
        "@type": f"{_TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": service,
        "processing_mode": mode,
        "message_timeout": "30s",
        "metadata_options": {
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
        },
        **({"failure_mode_allow": True} if setup.fail_open else {}),
        **setup.extra,
    }
    return {"name": "picker", "typed_config": config}


def _unavailable() -> dict[str, Any]:
    """Envoy's own empty 500 becomes a 503 that says what is missing; answers of pickers and engines pass."""

    def has(name: str, kind: str, value: str) -> dict[str, Any]:
        source = {"name": name, "typed_config": {"@type": f"type.googleapis.com/envoy.type.matcher.v3.{kind}"}}
        return {"single_predicate": {"input": source, "value_match": {"exact": value}}}

    both = [
        has("status", "HttpResponseStatusCodeMatchInput", "500"),
        has("local", "HttpResponseLocalReplyMatchInput", "true"),
    ]
    answer = {
        "@type": f"{_TYPE}.http.custom_response.local_response_policy.v3.LocalResponsePolicy",
        "status_code": 503,
        "body_format": {"text_format": json.dumps(UNAVAILABLE)},
        "response_headers_to_add": [
            {
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                "header": {"key": "content-type", "value": "application/json"},
            }
        ],
    }
    matcher = {
        "predicate": {"and_matcher": {"predicate": both}},
        "on_match": {"action": {"name": "unavailable", "typed_config": answer}},
    }
    config = {
        "@type": f"{_TYPE}.filters.http.custom_response.v3.CustomResponse",
        "custom_response_matcher": {"matcher_list": {"matchers": [matcher]}},
    }
    return {"name": "unavailable", "typed_config": config}


def _observer(response_body: str) -> dict[str, Any]:
    config = {
        "@type": f"{_TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "observability_mode": True,
        "failure_mode_allow": True,
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": response_body,
        },
    }
    return {"name": "observer", "typed_config": config}


def _subset_filter(header: str) -> dict[str, Any]:
    key = {"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset"}
    return {
        "name": "subset",
        "typed_config": {
            "@type": f"{_TYPE}.filters.http.header_to_metadata.v3.Config",
            "request_rules": [{"header": header, "on_header_present": key, "remove": True}],
        },
    }


def _http2(*, keepalive: bool) -> dict[str, Any]:
    kind = f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"
    options = {"connection_keepalive": {"interval": "1s", "timeout": "0.5s"}} if keepalive else {}
    config = {"@type": kind, "explicit_http_config": {"http2_protocol_options": options}}
    return {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": config}


def _http1_with_trailers() -> dict[str, Any]:
    kind = f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"
    options = {"http_protocol_options": {"enable_trailers": True}}
    return {kind.rpartition("/")[2]: {"@type": kind, "explicit_http_config": options}}


def _picker(pickers: Sequence[PickerAt], *, survives: bool) -> dict[str, Any]:
    endpoints: list[dict[str, Any]] = []
    for at in pickers:
        endpoint: dict[str, Any] = {"address": _address("127.0.0.1", at.port)}
        if survives and at.health_port is not None:
            endpoint["health_check_config"] = {"port_value": at.health_port}
        endpoints.append({"endpoint": endpoint})
    cluster = {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": _http2(keepalive=survives),
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    if not survives:
        return cluster
    check = {
        "interval": "0.5s",
        "timeout": "0.5s",
        "no_traffic_interval": "0.5s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": "readiness"},
    }
    most = 100_000
    limits = {"max_connections": most, "max_pending_requests": most, "max_requests": most, "max_retries": most}
    return cluster | {
        "health_checks": [check],
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "circuit_breakers": {"thresholds": [limits]},
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "consecutive_5xx": 5,
            "interval": "1s",
            "base_ejection_time": "5s",
            "max_ejection_percent": 50,
        },
    }


def _assignment(name: str, at: list[tuple[str, int]]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(host, port)}} for host, port in at]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _destination(setup: EnvoySetup) -> dict[str, Any]:
    common = {
        "name": "destination",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": _http1_with_trailers(),
    }
    header = "x-gateway-destination-endpoint"
    if setup.steer.startswith("override-host"):
        named = {"header": header}
        source = {"metadata": {"key": "envoy.lb", "path": [{"key": header}]}} if "metadata" in setup.steer else named
        policy = {
            "@type": f"{_TYPE}.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": [source],
            "fallback_policy": {"policies": [_round_robin()]},
        }
        at = [(host, int(port)) for host, _, port in (address.rpartition(":") for address in setup.hosts)]
        return common | {
            "type": "STATIC",
            "load_balancing_policy": {
                "policies": [{"typed_extension_config": {"name": "override", "typed_config": policy}}]
            },
            "load_assignment": _assignment("destination", at),
        }
    by: dict[str, Any] = {"use_http_header": True, "http_header_name": header}
    if setup.steer == "metadata":
        by = {"metadata_key": {"key": "envoy.lb", "path": [{"key": header}]}}
    return common | {"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "original_dst_lb_config": by}


def _round_robin() -> dict[str, Any]:
    kind = f"{_TYPE}.load_balancing_policies.round_robin.v3.RoundRobin"
    return {"typed_extension_config": {"name": "round-robin", "typed_config": {"@type": kind}}}
