"""The gateway of an adopted ServingPool: of InferencePools, HTTPRoutes, and what engines were told of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ballast_api.gateway_settings import Limits
from ballast_cli.adopting.found import Finding, Manifest, as_json, of_kind
from ballast_cli.adopting.pool import Pool

MODEL_HEADER: Final = "x-gateway-model-name"


def gateway_of(objects: Sequence[Manifest], pools: Sequence[Pool], findings: list[Finding]) -> Manifest:
    """`spec.gateway`; empty where its defaults do."""
    gateway: Manifest = {}
    for pool in of_kind(objects, "InferencePool"):
        gateway["face"] = "Picker"
        said = "face Picker: Ballast makes an InferencePool of its own, with its own picker"
        findings.append(Finding("differs", f"InferencePool {pool['metadata']['name']}", said))
        reference = (pool.get("spec") or {}).get("endpointPickerRef") or (pool.get("spec") or {}).get("extensionRef")
        if reference:
            said = "not used by the new pool; `ballast import endpoint-picker-config` translates its configuration"
            findings.append(Finding("left", f"its picker {reference.get('name')}", said))
    for route in of_kind(objects, "HTTPRoute"):
        spec = route.get("spec") or {}
        if spec.get("hostnames"):
            gateway["hostnames"] = list(spec["hostnames"])
        gateway |= _match(spec, route["metadata"]["name"], findings)
        said = "stays: its weights switch traffic over. parentRefs are left out until then, so there are not two routes"
        findings.append(Finding("check", f"HTTPRoute {route['metadata']['name']}", said))
    settings: Manifest = {}
    timeouts = [each for pool in pools if (each := pool.engine.line.number("shutdown-timeout"))]
    if timeouts and max(timeouts) != Limits().drain_timeout_s:
        settings["limits"] = {"drainTimeoutS": float(max(timeouts))}
    configs = [as_json(pool.engine.line.last("kv-events-config")) for pool in pools]
    events = [each for each in configs if each.get("enable_kv_cache_events")]
    if events:
        settings["kvEvents"] = {"enabled": True, **_event_ports(events[0])}
        said = "gateway.settings.kvEvents, with a replay port of Ballast's where there was none"
        findings.append(Finding("same", "--kv-events-config", said))
    return gateway | ({"settings": settings} if settings else {})


def _match(spec: Manifest, route: str, findings: list[Finding]) -> Manifest:
    """Headers that every request of the route carries."""
    empty: Manifest = {}
    matches: list[Manifest] = [match for rule in spec.get("rules") or () for match in rule.get("matches") or [empty]]
    paths = {(each.get("path") or {}).get("value", "/") for each in matches} - {"/", "/v1"}
    if paths:
        said = f"paths {', '.join(sorted(paths))}: Ballast's route takes /v1; see gateway.settings.extraPaths"
        findings.append(Finding("check", f"HTTPRoute {route}", said))
    headers = [{each["name"]: each for each in match.get("headers") or ()} for match in matches]
    common = [each for each in (headers[0].values() if headers else ()) if all(each in h.values() for h in headers)]
    exact = [each for each in common if each.get("type", "Exact") == "Exact"]
    if len(exact) < sum(map(len, headers[:1])) or any(len(each) > len(exact) for each in headers):
        said = "its matches by header are not alike or not exact; set gateway.match by hand"
        findings.append(Finding("check", f"HTTPRoute {route}", said))
        return {}
    by_model = any(each["name"].lower() == MODEL_HEADER for each in exact)
    others = [{key: each[key] for key in ("name", "value")} for each in exact if each["name"].lower() != MODEL_HEADER]
    found: Manifest = ({"headers": others} if others else {}) | ({"byModel": True} if by_model else {})
    return {"match": found} if found else {}


def _event_ports(config: Mapping[str, Any]) -> Manifest:
    found: Manifest = {}
    for key, field in (("endpoint", "port"), ("replay_endpoint", "replayPort")):
        number = str(config.get(key, "")).rpartition(":")[2]
        if number.isdigit():
            found[field] = int(number)
    return found | ({"topic": config["topic"]} if config.get("topic") else {})
