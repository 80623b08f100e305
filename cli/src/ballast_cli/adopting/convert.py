"""From Deployments to a ServingPool. Pure.

What Ballast writes itself is found by rendering the ServingPool with the operator's own builder and comparing: what the
Deployment has beyond that goes into the pool's arguments, environment and template, and nothing else does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ballast_api import names
from ballast_api.common import API_VERSION
from ballast_api.errors import InvalidInput, Problem
from ballast_api.hardware_profile import HardwareProfile, HardwareProfileSpec
from ballast_api.loading import parse_resource
from ballast_api.serving_pool import ServingPool
from ballast_cli.adopting.found import Engine, Finding, Manifest, around, engine_in, is_sidecar, json_object, of_kind
from ballast_cli.adopting.gateway import gateway_of
from ballast_cli.adopting.hardware import hardware_of
from ballast_cli.adopting.pool import Pool, rendered_pods, spec_of
from ballast_cli.adopting.steps import steps_to_switch
from ballast_cli.adopting.templates import add_templates
from ballast_cli.adopting.words import CommandLine
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_operator.specs.engine_deployment import engine_of

CONNECTOR: Final = "NixlConnector"
_NUMBERS: Final = {
    "port": "engine.port",
    "tensor-parallel-size": "the pool's tensorParallelSize",
    "shutdown-timeout": "gateway.settings.limits.drainTimeoutS",
    "max-model-len": "model.maxModelLen",
}
"""Options that Ballast writes from a field of the ServingPool which has their number."""
_OBJECTS: Final = {"kv-transfer-config": "engine.kvConnector", "kv-events-config": "gateway.settings.kvEvents"}
"""The same of those whose value is JSON."""
_WRITTEN: Final = frozenset({"host", "served-model-name", *_NUMBERS, *_OBJECTS})
"""Options that Ballast writes."""
_REPLACED: Final = frozenset({"port", "kv-transfer-config"})
"""Those of them that engines must have as Ballast writes them: its gateway would not find them, or moves no KV."""
_LIMITS: Final = ("block-size", "max-num-seqs", "max-num-batched-tokens")
"""Options that Ballast writes from the HardwareProfile."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A ServingPool and what became of everything."""

    manifest: Manifest
    findings: tuple[Finding, ...]
    steps: tuple[str, ...]
    """How to switch over, and back."""


def adopt(objects: Sequence[Manifest], *, name: str | None = None, namespace: str | None = None) -> Adopted:
    """Raises `InvalidInput` where there is nothing to adopt, or not one ServingPool. The result is valid.

    `objects` have the shapes that the API server, or else `check_shapes`, lets pass.
    """
    findings: list[Finding] = []
    engines = _engines(objects, findings)
    objects = around(objects, engines)
    given = _profiles(objects)
    models = Counter(engine.line.model for engine in engines)
    if len(models) > 1:
        words = ", ".join(f"{model} ({count})" for model, count in models.items())
        message = f"they serve several models: {words}; choose those of one by --selector"
        raise InvalidInput("", [Problem("Deployments", message)])
    called = _name(engines, objects, name, findings)
    shipped = {each: spec_of(profile) for each, profile in SHIPPED_PROFILES.items()}
    pools = [Pool(engine, pool, hardware_of(engine, given, shipped)) for engine, pool in _named(engines)]
    spec: Manifest = {"model": _model(pools, findings), "engine": _engine(pools, objects, findings), "pools": []}
    spec["pools"] = [_entry(pool, called, spec["engine"], objects, findings) for pool in pools]
    gateway = gateway_of(objects, pools, findings)
    if gateway:
        spec["gateway"] = gateway
    metadata = {"name": called, "namespace": namespace or engines[0].deployment["metadata"].get("namespace")}
    manifest: Manifest = {
        "apiVersion": API_VERSION,
        "kind": "ServingPool",
        "metadata": {key: value for key, value in metadata.items() if value},
        "spec": spec,
    }
    _share(pools, manifest, findings)
    found = parse_resource(manifest)
    assert isinstance(found, ServingPool)
    add_templates(found, pools, spec, findings)
    parse_resource(manifest)
    return Adopted(manifest, tuple(findings), tuple(steps_to_switch(manifest, objects)))


def _engines(objects: Sequence[Manifest], findings: list[Finding]) -> list[Engine]:
    selectors = [
        ((pool.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
        for pool in of_kind(objects, "InferencePool")
    ]
    found: list[Engine] = []
    for deployment in of_kind(objects, "Deployment"):
        engine = engine_in(deployment)
        what = f"Deployment {deployment['metadata']['name']}"
        if isinstance(engine, str):
            findings.append(Finding("left", what, engine))
        elif selectors and not any(selector.items() <= engine.labels.items() for selector in selectors):
            findings.append(Finding("left", what, "no InferencePool that was read selects its pods"))
        else:
            fit = "guessed" if engine.role_from.endswith("guess") else "same"
            findings.append(Finding(fit, what, f"a pool of role {engine.role}, by {engine.role_from}"))
            found.append(engine)
    for kind in ("LeaderWorkerSet", "StatefulSet"):
        for each in of_kind(objects, kind):
            said = "only Deployments are read; write its pool by hand, with nodesPerInstance where it spans nodes"
            findings.append(Finding("left", f"{kind} {each['metadata']['name']}", said))
    if not found:
        why = "; ".join(f"{each.of}: {each.said}" for each in findings) or "none was given"
        raise InvalidInput("", [Problem("Deployments", f"none has a vLLM engine ({why})")])
    return sorted(found, key=lambda each: ("Prefill", "Decode", "Flexible").index(each.role))


def _profiles(objects: Sequence[Manifest]) -> dict[str, HardwareProfileSpec]:
    found = {}
    for each in of_kind(objects, "HardwareProfile"):
        parsed = parse_resource({key: value for key, value in each.items() if key != "status"})
        if isinstance(parsed, HardwareProfile):
            found[parsed.name] = parsed.spec
    return found


def _name(engines: Sequence[Engine], objects: Sequence[Manifest], wanted: str | None, findings: list[Finding]) -> str:
    """A name whose children do not meet what is there: the operator never takes over what it has not made."""
    ours = engines[0].labels.get(names.LABEL_SERVING_POOL)
    pools = of_kind(objects, "InferencePool")
    first = wanted or ours or (pools[0]["metadata"]["name"] if pools else "adopted")
    name = first.lower().replace(".", "-")[: names.MAX_SERVING_POOL_NAME].rstrip("-")
    taken = {each["metadata"]["name"] for each in of_kind(objects, "Deployment")}
    children = {f"{name}-{pool}" for _, pool in _named(engines)}
    if not ours and taken & children:
        if wanted:
            both = ", ".join(sorted(taken & children))
            raise InvalidInput("", [Problem("--name", f"{name} would make {both}, which exist; choose another name")])
        name = f"{name[: names.MAX_SERVING_POOL_NAME - 8]}-ballast"
        findings.append(Finding("differs", "name", f"{name}, because Deployments of {first}'s names are there already"))
    return name


def _named(engines: Sequence[Engine]) -> list[tuple[Engine, str]]:
    counts = Counter(engine.role for engine in engines)
    seen: Counter[str] = Counter()
    result = []
    for engine in engines:
        seen[engine.role] += 1
        name = engine.role.lower() + (f"-{seen[engine.role]}" if counts[engine.role] > 1 else "")
        result.append((engine, engine.labels.get(names.LABEL_POOL, name)))
    return result


def _model(pools: Sequence[Pool], findings: list[Finding]) -> Manifest:
    line = pools[0].engine.line
    model: Manifest = {"name": line.model}
    served = _served(pools[0].engine)
    if served and served != [line.model]:
        model["servedNames"] = served
    if any(_served(pool.engine) != served for pool in pools):
        findings.append(Finding("differs", "--served-model-name", f"all pools get {' '.join(served) or line.model}"))
    lines = [pool.engine.line for pool in pools if not _unread(pool.engine.line, "max-model-len")]
    lengths = {line.number("max-model-len") for line in lines}
    given = [each for each in lengths if each]
    if given:
        model["maxModelLen"] = min(given)
    if len(lengths) > 1:
        findings.append(Finding("differs", "--max-model-len", f"all pools get {model.get('maxModelLen')}"))
    volume = _volume(pools[0].engine)
    if volume:
        model["volume"] = volume
        findings.append(Finding("same", "weights", "model.volume, of the volume that holds them"))
    return model


def _served(engine: Engine) -> list[str]:
    option = next((each for each in reversed(engine.line.options) if each.name == "served-model-name"), None)
    if option is None:
        return []
    return [option.value or ""] if "=" in option.words[0] else list(option.words[1:])


def _volume(engine: Engine) -> Manifest:
    """The volume that holds the weights, or that they are downloaded into."""
    volumes = {each["name"]: each for each in engine.pod.get("volumes") or ()}
    home = next((each.get("value") for each in engine.container.get("env") or () if each["name"] == "HF_HOME"), None)
    for mount in engine.container.get("volumeMounts") or ():
        volume, path = volumes.get(mount["name"], {}), mount["mountPath"].rstrip("/")
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        image = volume.get("image") or {}
        below = engine.line.model == path or engine.line.model.startswith(f"{path}/")
        if mount.get("subPath") or not path.startswith("/") or len(path) < 2:
            continue
        if claim and home == path:
            return {"cache": claim, "mountPath": path}
        if claim and below:
            return {"claim": claim, "mountPath": path}
        if image.get("reference") and below:
            pull = {"pullPolicy": image["pullPolicy"]} if image.get("pullPolicy") else {}
            return {"image": {"reference": image["reference"], **pull}, "mountPath": path}
    return {}


def _engine(pools: Sequence[Pool], objects: Sequence[Manifest], findings: list[Finding]) -> Manifest:
    first = pools[0].engine
    engine: Manifest = {"image": first.container.get("image", "")}
    if first.container.get("imagePullPolicy"):
        engine["imagePullPolicy"] = first.container["imagePullPolicy"]
    if first.line.command != ("vllm",):
        engine["command"] = list(first.line.command)
    port = _port(pools, objects, findings)
    if port != names.PORT_ENGINE:
        engine["port"] = port
    config = {key: value for key, value in first.connector.items() if key not in ("kv_connector", "kv_role")}
    kind = first.connector.get("kv_connector")
    if kind not in (None, CONNECTOR):
        findings.append(Finding("differs", "--kv-transfer-config", f"{kind} becomes {CONNECTOR}: Ballast has no other"))
    elif kind is None:
        findings.append(Finding("differs", "--kv-transfer-config", f"engines get {CONNECTOR} to exchange KV blocks"))
    elif config:
        engine["kvConnector"] = {"config": config}
    return engine


def _port(pools: Sequence[Pool], objects: Sequence[Manifest], findings: list[Finding]) -> int:
    """The port that clients of the pods use: an InferencePool's, a sidecar's, or the engine's own."""
    for pool in of_kind(objects, "InferencePool"):
        spec = pool.get("spec") or {}
        numbers = [each.get("number") for each in spec.get("targetPorts") or ()] or [spec.get("targetPortNumber")]
        if isinstance(numbers[0], int):
            return numbers[0]
    if any(is_sidecar(each) for pool in pools for each in _beside(pool.engine)):
        return names.PORT_ENGINE
    behind_ours = any(each["name"] == names.AGENT_CONTAINER for pool in pools for each in _beside(pool.engine))
    bare = [pool for pool in pools if not behind_ours or pool.engine.role == "Prefill"]
    ports = {pool.engine.line.number("port") or names.PORT_ENGINE for pool in bare}
    if len(ports) > 1:
        findings.append(Finding("differs", "--port", f"all pools get {min(ports)}"))
    return min(ports, default=names.PORT_ENGINE)


def _beside(engine: Engine) -> list[Manifest]:
    containers = [*(engine.pod.get("initContainers") or ()), *engine.pod["containers"]]
    return [each for each in containers if each["name"] != engine.container["name"]]


def _entry(
    pool: Pool, serving_pool: str, engine: Manifest, objects: Sequence[Manifest], findings: list[Finding]
) -> Manifest:
    deployment, container = pool.engine.deployment, pool.engine.container
    fit = "guessed" if pool.hardware.guessed else "same"
    findings.append(Finding(fit, f"pool {pool.name}: hardware", f"{pool.hardware.name}: {pool.hardware.said}"))
    entry: Manifest = {"name": pool.name, "role": pool.engine.role, "hardware": pool.hardware.name}
    scaler = next((each for each in of_kind(objects, "HorizontalPodAutoscaler") if _scales(each, deployment)), None)
    if scaler is None:
        entry["replicas"] = deployment["spec"].get("replicas", 1)
    else:
        least = max(int(scaler["spec"].get("minReplicas", 1)), 1)
        entry["autoscaling"] = {"minReplicas": least, "maxReplicas": int(scaler["spec"]["maxReplicas"])}
        target = names.pool_object_name(serving_pool, pool.name)
        said = f"its bounds; its metric is not read: give one like it the target EnginePool {target}, or set ratio.mode"
        findings.append(Finding("differs", f"HorizontalPodAutoscaler {scaler['metadata']['name']}", said))
    tensor = pool.engine.tensor_parallel_size
    if pool.hardware.spec is None or tensor != pool.hardware.spec.gpus:
        entry["tensorParallelSize"] = tensor
    if container.get("image", "") != engine["image"]:
        entry["image"] = container["image"]
    return entry


def _scales(scaler: Manifest, deployment: Manifest) -> bool:
    target = (scaler.get("spec") or {}).get("scaleTargetRef") or {}
    return (target.get("kind"), target.get("name")) == ("Deployment", deployment["metadata"]["name"])


def _share(pools: Sequence[Pool], manifest: Manifest, findings: list[Finding]) -> None:
    """Arguments and variables of all pools go to `engine`, the rest to each pool."""
    spec = manifest["spec"]
    arguments = [list(_arguments(pool, findings)) for pool in pools]
    shared = 0
    while all(len(each) > shared for each in arguments) and len({each[shared] for each in arguments}) == 1:
        shared += 1
    if shared:
        spec["engine"]["args"] = [word for words in arguments[0][:shared] for word in words]
    bare = parse_resource(manifest)
    assert isinstance(bare, ServingPool)
    variables = [_variables(pool, bare) for pool in pools]
    common = [each for each in variables[0] if all(each in other for other in variables)]
    if common:
        spec["engine"]["env"] = common
    for entry, words, env in zip(spec["pools"], arguments, variables, strict=True):
        if words[shared:]:
            entry["args"] = [word for option in words[shared:] for word in option]
        own = [each for each in env if each not in common]
        if own:
            entry["env"] = own


def _arguments(pool: Pool, findings: list[Finding]) -> Iterator[tuple[str, ...]]:
    """The options that Ballast does not write, in order."""
    profile = pool.hardware.spec
    known = {} if profile is None else dict(zip(_LIMITS, _numbers(profile), strict=True))
    added = [f"--{each} {value}" for each, value in known.items() if pool.engine.line.last(each) is None]
    if added:
        said = f"Ballast adds {' '.join(added)}, the profile's numbers; set the profile or the pool's args otherwise"
        findings.append(Finding("differs", f"pool {pool.name}: limits", said))
    kept = _kept(pool, findings)
    for option in pool.engine.line.options:
        if option.name in _WRITTEN - kept:
            continue
        if option.name in known and option.value == known.pop(option.name):
            continue
        known.pop(option.name, None)
        if option.name == "pipeline-parallel-size" and option.value != "1":
            said = "stays, but vLLM's NixlConnector pulls from no engine with pipeline stages"
            findings.append(Finding("check", f"pool {pool.name}: --pipeline-parallel-size", said))
        if option.name == "api-key":
            said = "stays; the gateway sends clients' own Authorization on, and none of its own"
            findings.append(Finding("check", f"pool {pool.name}: --api-key", said))
        yield option.words


def _kept(pool: Pool, findings: list[Finding]) -> frozenset[str]:
    """Options that stay in the arguments, where the last one wins, because no field says what their values do."""
    line = pool.engine.line
    unread = [name for name in (*_NUMBERS, *_OBJECTS) if _unread(line, name)]
    for name in unread:
        wanted = "whole number" if name in _NUMBERS else "JSON object"
        becomes = "Ballast writes its own" if name in _REPLACED else "it stays in the arguments"
        said = f"{line.last(name)} is no {wanted}: {becomes}; see {(_NUMBERS | _OBJECTS)[name]}"
        findings.append(Finding("check", f"pool {pool.name}: --{name}", said))
    return frozenset(unread) - _REPLACED


def _unread(line: CommandLine, name: str) -> bool:
    """Whether an option is there with a value that is no number, or no JSON object, as it should be."""
    value = line.last(name)
    return value is not None and (line.number(name) if name in _NUMBERS else json_object(value)) is None


def _numbers(profile: HardwareProfileSpec) -> tuple[str, str, str]:
    return str(profile.block_size), str(profile.max_num_seqs), str(profile.max_num_batched_tokens)


def _variables(pool: Pool, bare: ServingPool) -> list[Manifest]:
    """Those that Ballast does not set, or otherwise. `bare` sets none itself."""
    rendered = engine_of(rendered_pods(bare, pool)).get("env") or ()
    ours = {each["name"]: each for each in rendered}
    return [each for each in pool.engine.container.get("env") or () if ours.get(each["name"]) != _plain(each)]


def _plain(variable: Manifest) -> Manifest:
    """As Ballast writes one: the API server adds the version of a field reference."""
    field = (variable.get("valueFrom") or {}).get("fieldRef")
    return variable if not field else {**variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", **field}}}
