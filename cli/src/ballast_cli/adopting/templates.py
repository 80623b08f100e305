"""Templates of adopted pools: what pods have beyond those that the operator makes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ballast_api import names
from ballast_api.common import GROUP
from ballast_api.serving_pool import ServingPool
from ballast_cli.adopting.found import Finding, Manifest, is_sidecar
from ballast_cli.adopting.pool import Pool, rendered_pods
from ballast_operator.specs.engine_deployment import engine_of

_OF_THE_ENGINE: Final = frozenset(
    {
        *("name", "image", "imagePullPolicy", "command", "args", "env", "ports", "resources", "volumeMounts"),
        *("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "securityContext"),
        *("terminationMessagePath", "terminationMessagePolicy"),
    }
)
"""Fields of the container that are looked at one by one, or that the API server fills in."""
_OF_THE_POD: Final = frozenset(
    {
        *("containers", "initContainers", "volumes", "securityContext", "terminationGracePeriodSeconds"),
        *("restartPolicy", "dnsPolicy", "schedulerName", "serviceAccount", "topologySpreadConstraints"),
        *("automountServiceAccountToken", "enableServiceLinks"),
    }
)
_OWN_WAY: Final = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "securityContext")


def add_templates(found: ServingPool, pools: Sequence[Pool], spec: Manifest, findings: list[Finding]) -> None:
    """Into the entries of `spec`, where pools need one."""
    for pool, entry in zip(pools, spec["pools"], strict=True):
        rendered = rendered_pods(found, pool)
        overlay = _overlay(pool, rendered, findings)
        if overlay:
            entry["template"] = overlay


def _overlay(pool: Pool, rendered: Manifest, findings: list[Finding]) -> Manifest:
    """What the pods have beyond the rendered ones."""
    theirs, ours, of = pool.engine.pod, rendered["spec"], f"pool {pool.name}"
    spec: Manifest = {
        key: value for key, value in theirs.items() if key not in _OF_THE_POD and value and value != ours.get(key)
    }
    findings += [Finding("same", f"{of}: {key}", "in its template") for key in spec]
    mounts = {each["mountPath"] for each in engine_of(rendered)["volumeMounts"]}
    more = [
        each
        for each in pool.engine.container.get("volumeMounts") or ()
        if each["mountPath"] not in mounts and not each["mountPath"].startswith("/var/run/secrets/kubernetes.io")
    ]
    engine: Manifest = {"volumeMounts": more} if more else {}
    resources = _resources(pool.engine.container.get("resources") or {}, engine_of(rendered)["resources"])
    if resources:
        engine["resources"] = resources
        findings.append(Finding("same", f"{of}: resources", "in its template"))
    engine |= {key: value for key, value in pool.engine.container.items() if key not in _OF_THE_ENGINE and value}
    beside, starting = list(_others(pool, of, findings))
    containers = [{"name": names.ENGINE_CONTAINER, **engine}] if engine else []
    if containers or beside:
        spec["containers"] = [*containers, *beside]
    if starting:
        spec["initContainers"] = starting
    used = {each["name"] for each in (*more, *_mounts(beside), *_mounts(starting))}
    known = {each["name"] for each in ours["volumes"]}
    volumes = [each for each in theirs.get("volumes") or () if each["name"] in used and each["name"] not in known]
    if volumes:
        spec["volumes"] = volumes
        called = ", ".join(each["name"] for each in volumes)
        findings.append(Finding("same", f"{of}: volumes", f"{called}: in its template"))
    findings += _own_way(pool, rendered, of)
    return {"spec": spec} if spec else {}


def _resources(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Manifest:
    limits: Mapping[str, Any] = ours.get("limits") or {}
    found: dict[str, Manifest] = {"limits": {}, "requests": {}}
    for part, values in found.items():
        known: Mapping[str, Any] = ours.get(part) or {}
        for key, value in (theirs.get(part) or {}).items():
            # GPUs are requested as they are limited, said or not.
            if str(known.get(key)) != str(value) and not (part == "requests" and str(limits.get(key)) == str(value)):
                values[key] = value
    found["limits"] |= dict.fromkeys(key for key in limits if key not in (theirs.get("limits") or {}))
    return {part: values for part, values in found.items() if values}


def _others(pool: Pool, of: str, findings: list[Finding]) -> Iterator[list[Manifest]]:
    """Containers beside the engine, then those that start before it."""
    for field in ("containers", "initContainers"):
        kept = []
        for each in pool.engine.pod.get(field) or ():
            if each["name"] in (pool.engine.container["name"], names.AGENT_CONTAINER):
                continue
            if is_sidecar(each):
                said = "left out: Ballast's agent takes its place where an Envoy asks a picker"
                findings.append(Finding("differs", f"{of}: container {each['name']}", said))
                continue
            findings.append(Finding("same", f"{of}: container {each['name']}", "in its template"))
            kept.append(each)
        yield kept


def _mounts(containers: Iterable[Manifest]) -> list[Manifest]:
    return [mount for each in containers for mount in each.get("volumeMounts") or ()]


def _own_way(pool: Pool, rendered: Manifest, of: str) -> Iterator[Finding]:
    """What Ballast does in its own way."""
    engine = engine_of(rendered)
    changed = [key for key in _OWN_WAY if (pool.engine.container.get(key) or None) not in (None, engine.get(key))]
    if changed:
        yield Finding("differs", f"{of}: {', '.join(changed)}", "Ballast's own; a template may change them")
    if (pool.engine.pod.get("securityContext") or {}) != rendered["spec"]["securityContext"]:
        yield Finding(
            "check", f"{of}: user", "pods run as user 10001, not as root; an image that must needs a template"
        )
    requests = pool.engine.container.get("resources", {}).get("requests") or {}
    added = {key: value for key, value in engine["resources"]["requests"].items() if key not in requests}
    if added:
        words = ", ".join(f"{key} {value}" for key, value in added.items())
        yield Finding("differs", f"{of}: requests", f"also {words}: nodes must have them free")
    strange = {
        each
        for each in pool.engine.labels
        if each not in rendered["metadata"]["labels"] and not each.startswith(f"{GROUP}/")
    }
    if strange:
        said = f"{', '.join(sorted(strange))}: left out, or old Services and InferencePools would select the new pods"
        yield Finding("left", f"{of}: labels", said)
