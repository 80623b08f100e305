"""A real Envoy on loopback in front of a picker: listener -> ext_proc -> the endpoint that the picker names."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

BINARY = Path(__file__).parents[2] / ".tools/envoy/bin/envoy"
"""Installed by `make envoy`."""

_TYPE = "type.googleapis.com/envoy.extensions"

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
    steer: Literal["header", "metadata", "override-host"] = "header"
    """How Envoy finds the endpoint that was picked."""
    hosts: tuple[str, ...] = ()
    """For override-host: the endpoints that Envoy itself knows."""
    subset: str | None = None
    """Client header that becomes the subset hint, as Envoy's header-to-metadata filter writes it."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of the ext_proc filter."""

    def without_response(self) -> EnvoySetup:
        return replace(self, response_body=None)


@dataclass(frozen=True, slots=True)
class RunningEnvoy:
    url: str
    admin: str
    pid: int


@asynccontextmanager
async def envoy(picker_port: int | None, setup: EnvoySetup, folder: Path) -> AsyncIterator[RunningEnvoy]:
    """Start Envoy on free ports; end it by its pid. Without a picker port it has no ext_proc filter.

    Its log stays in `folder`, and is shown when Envoy does not come up.
    """
    assert BINARY.exists(), "no Envoy: run `make envoy`"
    process = _start(bootstrap(picker_port, setup), folder)
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


def bootstrap(picker_port: int | None, setup: EnvoySetup) -> dict[str, Any]:
    """Envoy's configuration."""
    filters: list[dict[str, Any]] = []
    if setup.subset is not None:
        filters.append(_subset_filter(setup.subset))
    clusters = [_destination(setup)]
    if picker_port is not None:
        filters.append(_ext_proc(setup))
        clusters.append(_picker(picker_port))
    filters.append({"name": "router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}})
    route = {"match": {"prefix": "/"}, "route": {"cluster": "destination", "timeout": "60s"}}
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "AUTO",
        "http_protocol_options": {"enable_trailers": True},
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": filters,
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


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _ext_proc(setup: EnvoySetup) -> dict[str, Any]:
    mode = {
        "request_header_mode": "SEND",
        "request_body_mode": setup.request_body,
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND" if setup.response_body else "SKIP",
        "response_body_mode": setup.response_body or "NONE",
        "response_trailer_mode": "SEND" if setup.response_body else "SKIP",
    }
    config = {
        "@type": f"{_TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"},
        "processing_mode": mode,
        "message_timeout": "30s",
        "metadata_options": {
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
        },
        **setup.extra,
    }
    return {"name": "picker", "typed_config": config}


def _subset_filter(header: str) -> dict[str, Any]:
    key = {"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset"}
    return {
        "name": "subset",
        "typed_config": {
            "@type": f"{_TYPE}.filters.http.header_to_metadata.v3.Config",
            "request_rules": [{"header": header, "on_header_present": key, "remove": True}],
        },
    }


def _http2() -> dict[str, Any]:
    kind = f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"
    return {kind.rpartition("/")[2]: {"@type": kind, "explicit_http_config": {"http2_protocol_options": {}}}}


def _http1_with_trailers() -> dict[str, Any]:
    kind = f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"
    options = {"http_protocol_options": {"enable_trailers": True}}
    return {kind.rpartition("/")[2]: {"@type": kind, "explicit_http_config": options}}


def _picker(port: int) -> dict[str, Any]:
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": _http2(),
        "load_assignment": _assignment("picker", [("127.0.0.1", port)]),
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
    if setup.steer == "override-host":
        source = {"header": header}
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
