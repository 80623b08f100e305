"""One table of mutations of valid objects, for both judges of the API: the pydantic models and the kube-apiserver.

tests/api applies it to the models, e2e to a real API server; both must accept and refuse the same objects and name the
same field. `field` is the camelCase path that the error names; None means that the object is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

from ballast_api.hardware_profile import SPEEDS
from ballast_api.policy_parameters import manifest_words
from ballast_core.policies.composing import NOTHING_WAITS
from tests.support.api_objects import ABSENT, Object, edit, full, valid


@dataclass(frozen=True)
class Mutation:
    """A valid object of `kind` with `edits` (path to value), and the field that is refused."""

    id: str
    kind: str
    edits: Mapping[str, Any]
    field: str | None = None
    message: str = ""
    """Part of pydantic's message."""
    server_field: str = ""
    """Where the API server names another path than pydantic does."""
    server_message: str = ""
    """Part of the server's message, where that matters: the rules' messages are ours and must be the same."""

    full: bool = False
    """Start from the object that sets every field."""

    def object(self) -> Object:
        """The mutated object."""
        result = full(self.kind) if self.full else valid(self.kind)
        for path, value in self.edits.items():
            edit(result, path, deepcopy(value))
        return result

    @property
    def expected_server_field(self) -> str:
        return self.server_field or self.field or ""


_SPEEDS = [to_camel(each) for each in SPEEDS]
_NOTHING_WAITS = manifest_words(NOTHING_WAITS)


def _pool(path: str, value: Any, **also: Any) -> dict[str, Any]:
    return {f"spec.pools[0].{path}": value, **{f"spec.pools[0].{key}": item for key, item in also.items()}}


_KV_EVENTS_PORT = "spec.gateway.settings.kvEvents.port"
_LISTENED = (
    "engine.port, 5600 (NIXL), with agents 9004 and 8200 (8201 if engine.port is 8200), "
    "and with nodesPerInstance above 1 29501 are taken"
)


def _serving_pool(
    id_: str, edits: Mapping[str, Any], field_: str | None, message: str = "", *, server_field: str = ""
) -> Mutation:
    return Mutation(f"pool-{id_}", "ServingPool", edits, field_, message, server_field)


def _kv_events(face: str = "Proxy", **settings: Any) -> dict[str, Any]:
    return {"spec.gateway": {"face": face, "settings": {"kvEvents": {"enabled": True, **settings}}}}


def _rule(id_: str, edits: Mapping[str, Any], field_: str, message: str) -> Mutation:
    """A rule across fields: the server's message must have the very same words."""
    return Mutation(f"pool-{id_}", "ServingPool", edits, field_, message, server_message=message)


_WEIGHTED_SUM = {
    "type": "weighted-sum",
    "parameters": {
        "normalise": "largest",
        "parts": [
            {"type": "ils", "weight": 0.5},
            {"type": "filter-then", "parameters": {"first": {"type": "ils"}, "then": {"type": "random"}}},
        ],
    },
}
_MANY_POOLS = [{"name": f"p{i}", "role": "Flexible", "hardware": "a100", "replicas": 1} for i in range(17)]

MALFORMED_SERVING_POOLS: tuple[Mutation, ...] = (
    _serving_pool("name-too-long", {"metadata.name": "a" * 41}, "metadata.name", "41 characters; 40 are allowed"),
    _serving_pool("name-with-dot", {"metadata.name": "qwen3.32b"}, "metadata.name", "from a letter to"),
    _serving_pool("name-starts-with-digit", {"metadata.name": "3b"}, "metadata.name", "from a letter to"),
    _serving_pool("no-spec", {"spec": ABSENT}, "spec", "is missing"),
    _serving_pool("spec-is-a-list", {"spec": []}, "spec", "must be a mapping"),
    _serving_pool("unknown-field", {"spec.polls": []}, "spec.polls", "did you mean pools?"),
    _serving_pool("no-model", {"spec.model": ABSENT}, "spec.model", "is missing"),
    _serving_pool("no-model-name", {"spec.model.name": ABSENT}, "spec.model.name", "is missing"),
    _serving_pool("model-name-null", {"spec.model.name": None}, "spec.model.name", "must be a text"),
    _serving_pool("model-name-with-space", {"spec.model.name": "Qwen 3"}, "spec.model.name", "one word without spaces"),
    _serving_pool("model-len-zero", {"spec.model.maxModelLen": 0}, "spec.model.maxModelLen", "must be 1 or more"),
    _serving_pool("served-names-text", {"spec.model.servedNames": "qwen"}, "spec.model.servedNames", "must be a list"),
    _serving_pool("empty-served-name", {"spec.model.servedNames": [""]}, "spec.model.servedNames[0]", "be empty"),
    _serving_pool("no-image", {"spec.engine.image": ABSENT}, "spec.engine.image", "is missing"),
    _serving_pool("empty-image", {"spec.engine.image": ""}, "spec.engine.image", "must not be empty"),
    _serving_pool(
        "pull-policy", {"spec.engine.imagePullPolicy": "Sometimes"}, "spec.engine.imagePullPolicy", "'Always'"
    ),
    _serving_pool("port-too-high", {"spec.engine.port": 70000}, "spec.engine.port", "must be 65535 or less"),
    _serving_pool("port-text", {"spec.engine.port": "8000"}, "spec.engine.port", "must be a whole number"),
    _serving_pool("empty-command", {"spec.engine.command": []}, "spec.engine.command", "1 or more entries"),
    _serving_pool("args-number", {"spec.engine.args": [1]}, "spec.engine.args[0]", "a text in quotes"),
    _serving_pool(
        "env-number",
        {"spec.engine.env": [{"name": "A", "value": 1}]},
        "spec.engine.env[0].value",
        "must be a text in quotes, not 1",
    ),
    _serving_pool(
        "env-boolean",
        {"spec.pools[0].env": [{"name": "A", "value": True}]},
        "spec.pools[0].env[0].value",
        "must be a text in quotes, not true",
    ),
    _serving_pool(
        "origin-with-a-path",
        {"spec.gateway": {"settings": {"corsOrigins": ["https://app.example.com/"]}}},
        "spec.gateway.settings.corsOrigins[0]",
        "or scheme://host:port with http or https",
    ),
    _serving_pool(
        "receiver-without-a-scheme",
        {"spec.gateway": {"settings": {"tracing": {"endpoint": "collector:4317"}}}},
        "spec.gateway.settings.tracing.endpoint",
        "must be http://host:port or https://host:port",
    ),
    _serving_pool(
        "connector", {"spec.engine.kvConnector.type": "nixl"}, "spec.engine.kvConnector.type", "'NixlConnector'"
    ),
    _serving_pool("no-pools", {"spec.pools": ABSENT}, "spec.pools", "is missing"),
    _serving_pool("empty-pools", {"spec.pools": []}, "spec.pools", "1 or more entries"),
    _serving_pool("too-many-pools", {"spec.pools": _MANY_POOLS}, "spec.pools", "16 are allowed"),
    _serving_pool(
        "pools-by-name",
        {"spec.pools": {"prefill": {}}},
        "spec.pools",
        "must be a list",
        server_field="spec.pools.prefill",
    ),
    _serving_pool("pool-without-name", _pool("name", ABSENT), "spec.pools[0].name", "is missing"),
    _serving_pool("pool-name-twice", {"spec.pools[1].name": "prefill"}, "spec.pools[1]", "of an earlier entry"),
    _serving_pool("pool-name-too-long", _pool("name", "p" * 21), "spec.pools[0].name", "20 are allowed"),
    _serving_pool(
        "pool-name-underscore", _pool("name", "pre_fill"), "spec.pools[0].name", "must be lower-case letters"
    ),
    *(
        _rule(
            f"tls-of-the-{face}-that-routes-cannot-speak",
            {"spec.gateway": {"parentRefs": [{"name": "eg"}], "settings": {"tls": {face: {"mode": "Required"}}}}},
            f"spec.gateway.settings.tls.{face}.mode",
            "the routes that parentRefs asks for speak plaintext to the gateway: set Optional, or write your own",
        )
        for face in ("proxy", "picker")
    ),
    _rule(
        "half-a-pair-of-tls-files",
        {"spec.gateway": {"settings": {"tls": {"picker": {"keyFile": "/tls/tls.key"}}}}},
        "spec.gateway.settings.tls.picker.keyFile",
        "set both of certFile and keyFile, or neither",
    ),
    _rule("pool-named-gateway", _pool("name", "gateway"), "spec.pools[0].name", "the name gateway is taken"),
    _serving_pool("role-lower-case", _pool("role", "prefill"), "spec.pools[0].role", "'Prefill', 'Decode'"),
    _serving_pool("no-hardware", _pool("hardware", ABSENT), "spec.pools[0].hardware", "is missing"),
    _serving_pool(
        "hardware-upper-case", _pool("hardware", "A100"), "spec.pools[0].hardware", "must be lower-case letters"
    ),
    _rule("no-replicas", _pool("replicas", ABSENT), "spec.pools[0].replicas", "set exactly one of replicas"),
    _rule(
        "replicas-and-autoscaling",
        _pool("autoscaling", {"minReplicas": 1, "maxReplicas": 2}),
        "spec.pools[0].replicas",
        "set exactly one of replicas and autoscaling",
    ),
    _serving_pool("replicas-negative", _pool("replicas", -1), "spec.pools[0].replicas", "must be 0 or more"),
    _serving_pool("replicas-text", _pool("replicas", "2"), "spec.pools[0].replicas", "must be a whole number"),
    _serving_pool("replicas-fraction", _pool("replicas", 2.5), "spec.pools[0].replicas", "must be a whole number"),
    _serving_pool("replicas-true", _pool("replicas", True), "spec.pools[0].replicas", "not true"),
    _serving_pool("replicas-null", _pool("replicas", None), "spec.pools[0].replicas", "set exactly one of"),
    _serving_pool("replicas-huge", _pool("replicas", 2**31), "spec.pools[0].replicas", "2147483647 or less"),
    _serving_pool("replica-misspelt", _pool("replica", 2), "spec.pools[0].replica", "did you mean replicas?"),
    _rule(
        "autoscaling-upside-down",
        _pool("autoscaling", {"minReplicas": 3, "maxReplicas": 2}, replicas=ABSENT),
        "spec.pools[0].autoscaling.minReplicas",
        "minReplicas must not be above maxReplicas",
    ),
    _rule(
        "autoscaling-to-zero-never",
        _pool("autoscaling", {"minReplicas": 0, "maxReplicas": 2}, replicas=ABSENT),
        "spec.pools",
        "minReplicas 0 needs ratio.scaleToZeroAfterS",
    ),
    _rule(
        "zero-above-the-least",
        {"spec.ratio": {"mode": "Auto", "scaleToZeroAfterS": 600}},
        "spec.ratio.scaleToZeroAfterS",
        "scaling to zero needs autoscaling with minReplicas 0",
    ),
    _serving_pool(
        "autoscaling-below-zero",
        _pool("autoscaling", {"minReplicas": -1, "maxReplicas": 2}, replicas=ABSENT),
        "spec.pools[0].autoscaling.minReplicas",
        "must be 0 or more",
    ),
    _serving_pool(
        "autoscaling-without-max",
        _pool("autoscaling", {"minReplicas": 1}, replicas=ABSENT),
        "spec.pools[0].autoscaling.maxReplicas",
        "is missing",
    ),
    _rule("no-prefill", {"spec.pools[0].role": "Decode"}, "spec.pools", "no pool can prefill"),
    _rule("no-decode", {"spec.pools[1].role": "Prefill"}, "spec.pools", "no pool can decode"),
    _rule(
        "port-of-the-agent",
        {"spec.engine.port": 9004, "spec.gateway.face": "Picker"},
        "spec.engine.port",
        "port 9004 is the agent's own in pods behind the picker face",
    ),
    _rule("port-of-nixl", {"spec.engine.port": 5600}, "spec.engine.port", "port 5600 is NIXL's own in engine pods"),
    _rule(
        "port-of-a-groups-master",
        {"spec.engine.port": 29501, **_pool("nodesPerInstance", 2)},
        "spec.engine.port",
        "at port 29501 the nodes of one instance meet",
    ),
    _rule(
        "kv-events-at-a-groups-master",
        _kv_events(port=29490, ranks=12) | _pool("nodesPerInstance", 2),
        _KV_EVENTS_PORT,
        _LISTENED,
    ),
    _rule(
        "kv-events-beyond-all-ports",
        _kv_events(port=65535, ranks=2),
        _KV_EVENTS_PORT,
        "the last rank's port, port + ranks - 1, must be 65535 or less",
    ),
    _rule(
        "kv-replay-beyond-all-ports",
        _kv_events(replayPort=65530, ranks=7),
        "spec.gateway.settings.kvEvents.replayPort",
        "the last rank's port, replayPort + ranks - 1, must be 65535 or less",
    ),
    _rule("kv-events-at-the-engine", _kv_events(port=8000), _KV_EVENTS_PORT, _LISTENED),
    _rule("kv-events-at-nixl", _kv_events(port=5600), _KV_EVENTS_PORT, _LISTENED),
    _rule("kv-events-at-nixl-by-rank", _kv_events(port=5593, ranks=8), _KV_EVENTS_PORT, _LISTENED),
    _rule("kv-events-at-the-pod-api", _kv_events("Picker", port=9004), _KV_EVENTS_PORT, _LISTENED),
    _rule("kv-events-behind-the-agent", _kv_events("Both", port=8200), _KV_EVENTS_PORT, _LISTENED),
    _rule(
        "kv-events-behind-an-agent-at-8200",
        {"spec.engine.port": 8200, **_kv_events("Picker", port=8201)},
        _KV_EVENTS_PORT,
        _LISTENED,
    ),
    _rule(
        "kv-replay-at-the-engine",
        _kv_events(replayPort=7990, ranks=11),
        "spec.gateway.settings.kvEvents.replayPort",
        _LISTENED,
    ),
    _serving_pool("tp-zero", _pool("tensorParallelSize", 0), "spec.pools[0].tensorParallelSize", "1 or more"),
    _serving_pool("template-list", _pool("template", []), "spec.pools[0].template", "must be a mapping"),
    _serving_pool(
        "container-without-name",
        _pool("template.spec.containers", [{"image": "x"}]),
        "spec.pools[0].template.spec.containers[0].name",
        "is missing",
    ),
    _serving_pool(
        "label-number",
        _pool("template.metadata.labels", {"team": 7}),
        "spec.pools[0].template.metadata.labels.team",
        "a text in quotes",
    ),
    _serving_pool("ratio-mode", {"spec.ratio.mode": "On"}, "spec.ratio.mode", "'Auto', 'Advisory' or 'Off'"),
    _serving_pool("ratio-mode-off-unquoted", {"spec.ratio.mode": False}, "spec.ratio.mode", "put it in quotes"),
    _serving_pool("ratio-zero", {"spec.ratio.minRatio": 0}, "spec.ratio.minRatio", "must be above 0"),
    _rule(
        "ratio-upside-down",
        {"spec.ratio": {"minRatio": 2.0, "maxRatio": 0.5}},
        "spec.ratio.minRatio",
        "minRatio must not be above maxRatio",
    ),
    _serving_pool("policy-ref-text", {"spec.policyRef": "mine"}, "spec.policyRef", "must be a mapping"),
    _serving_pool("slo-ref-empty", {"spec.sloRef": {}}, "spec.sloRef.name", "is missing"),
    _serving_pool(
        "slo-name-twice",
        {"spec.sloRefs": [{"name": "a"}, {"name": "a"}]},
        "spec.sloRefs[1]",
        "of an earlier entry",
    ),
    _rule(
        "slo-ref-and-refs",
        {"spec.sloRef": {"name": "s"}, "spec.sloRefs": [{"name": "s"}]},
        "spec.sloRefs",
        "set one of",
    ),
    _serving_pool("face", {"spec.gateway.face": "proxy"}, "spec.gateway.face", "'Proxy', 'Picker' or 'Both'"),
    _serving_pool("gateway-replicas", {"spec.gateway.replicas": -1}, "spec.gateway.replicas", "0 or more"),
    _serving_pool(
        "parent-without-name", {"spec.gateway.parentRefs": [{}]}, "spec.gateway.parentRefs[0].name", "is missing"
    ),
    _rule(
        "rollout-stuck",
        {"spec.rollout": {"maxSurge": "0%", "maxUnavailable": 0}},
        "spec.rollout.maxSurge",
        "cannot both be 0",
    ),
    _rule("surge-text", {"spec.rollout.maxSurge": "some"}, "spec.rollout.maxSurge", "or a percentage from 0% to 100%"),
    _rule("surge-over-100", {"spec.rollout.maxSurge": "101%"}, "spec.rollout.maxSurge", "from 0% to 100%"),
    _rule("surge-negative", {"spec.rollout.maxSurge": -1}, "spec.rollout.maxSurge", "a number, 0 or more"),
    _rule("surge-huge", {"spec.rollout.maxSurge": 2**31}, "spec.rollout.maxSurge", "2147483647 or less"),
    _rule(
        "unavailable-huge",
        {"spec.rollout.maxUnavailable": 3_000_000_000},
        "spec.rollout.maxUnavailable",
        "2147483647 or less",
    ),
    _serving_pool(
        "surge-fraction", {"spec.rollout.maxSurge": 0.5}, "spec.rollout.maxSurge", "a whole number or a perc"
    ),
    _serving_pool("skew-percent", {"spec.rollout.maxSkew": 25}, "spec.rollout.maxSkew", "must be 1 or less"),
    _serving_pool(
        "scale-down-for-ever", {"spec.scaleDown.drainTimeoutS": 1e300}, "spec.scaleDown.drainTimeoutS", "604800 or less"
    ),
    *(
        _serving_pool(
            f"{field_}-for-ever",
            {"spec.gateway": {"settings": {"limits": {field_: 604_801}}}},
            f"spec.gateway.settings.limits.{field_}",
            "604800 or less",
        )
        for field_ in ("drainTimeoutS", "drainGraceS")
    ),
    _rule(
        "header-of-the-model-twice",
        {"spec.gateway.match": {"byModel": True, "headers": [{"name": "x-gateway-model-name", "value": "a"}]}},
        "spec.gateway.match.headers",
        "byModel asks for x-gateway-model-name itself",
    ),
    _rule("gpu-budget", {"spec.gpuBudget": 5}, "spec.gpuBudget", "gpuBudget is below what the pools' replicas need"),
    _rule(
        "gpu-budget-tp",
        {"spec.gpuBudget": 9, "spec.pools[0].tensorParallelSize": 2, "spec.pools[0].nodesPerInstance": 2},
        "spec.gpuBudget",
        "raise it or lower replicas",
    ),
)

ACCEPTED_SERVING_POOLS: tuple[Mutation, ...] = (
    _serving_pool("as-it-is", {}, None),
    _serving_pool("name-of-40", {"metadata.name": "a" * 40}, None),
    _serving_pool(
        "flexible-only",
        {"spec.pools": [{"name": "all", "role": "Flexible", "hardware": "a100", "replicas": 1}]},
        None,
    ),
    _serving_pool("flexible-beside-decode", {"spec.pools[0].role": "Flexible"}, None),
    _serving_pool("autoscaling", _pool("autoscaling", {"minReplicas": 1, "maxReplicas": 1}, replicas=ABSENT), None),
    _serving_pool("no-instances", _pool("replicas", 0), None),
    _serving_pool("null-where-there-is-a-default", {"spec.gateway": None, "spec.rollout": {"maxSurge": None}}, None),
    _serving_pool("null-label", _pool("template", {"metadata": {"labels": {"team": None}}}), None),
    _serving_pool("null-is-absence", {"spec.policyRef": None, "spec.model.maxModelLen": None}, None),
    _serving_pool("whole-number-for-a-fraction", {"spec.ratio": {"minRatio": 1, "maxRatio": 2}}, None),
    _serving_pool(
        "origins-and-a-receiver",
        {
            "spec.gateway": {
                "settings": {
                    "corsOrigins": ["*", "http://localhost:3000", "https://app.example.com"],
                    "tracing": {"endpoint": "http://[::1]:4318/v1/traces"},
                }
            }
        },
        None,
    ),
    _serving_pool("port-of-the-pod-api-without-agents", {"spec.engine.port": 9004}, None),
    _serving_pool("port-of-no-groups-master", {"spec.engine.port": 29501}, None),
    _serving_pool("kv-events-up-to-the-last-port", _kv_events(port=65504, ranks=32), None),
    _serving_pool("kv-events-of-no-engine", _kv_events(enabled=False, port=8000), None),
    _serving_pool("kv-events-between", _kv_events("Picker", port=5592, ranks=8, replayPort=8201), None),
    _serving_pool("kv-events-where-no-agent-is", _kv_events(port=9004, replayPort=8200), None),
    _serving_pool(
        "kv-events-beside-an-agent-at-8200", {"spec.engine.port": 8200, **_kv_events("Picker", port=8202)}, None
    ),
    _serving_pool("most-surge", {"spec.rollout.maxSurge": 2**31 - 1}, None),
    _serving_pool("a-week-to-drain", {"spec.scaleDown.drainTimeoutS": 604_800}, None),
    _serving_pool(
        "header-of-the-model",
        {"spec.gateway.match": {"headers": [{"name": "x-gateway-model-name", "value": "a"}]}},
        None,
    ),
    _serving_pool("budget-just-enough", {"spec.gpuBudget": 6}, None),
    _serving_pool("some-of-rollout", {"spec.rollout": {"maxSurge": 1, "maxSkew": 0}}, None),
    _serving_pool(
        "template-with-anything",
        _pool(
            "template",
            {
                "metadata": {"labels": {"team": "a"}, "finalizers": []},
                "spec": {
                    "tolerations": [{"operator": "Exists"}],
                    "hostname": None,
                    "containers": [{"name": "engine", "resources": {"limits": {"cpu": 2}}, "tty": None}],
                },
            },
        ),
        None,
    ),
    _serving_pool("connector-config", {"spec.engine.kvConnector": {"config": {"a": {"b": [1, None, "x"]}}}}, None),
    _serving_pool(
        "tls",
        {
            "spec.gateway": {
                "parentRefs": [{"name": "eg"}],
                "settings": {"tls": {"proxy": {"mode": "Optional", "certFile": "/tls/tls.crt", "keyFile": "/tls/k"}}},
            }
        },
        None,
    ),
    _serving_pool(
        "tls-required-without-routes", {"spec.gateway": {"settings": {"tls": {"proxy": {"mode": "Required"}}}}}, None
    ),
    _serving_pool(
        "parents",
        {
            "spec.gateway": {
                "face": "Picker",
                "parentRefs": [{"name": "eg"}, {"name": "b", "namespace": "n", "port": 80}],
            }
        },
        None,
    ),
)


def _of(kind: str, *rows: tuple[str, Mapping[str, Any], str | None, str]) -> tuple[Mutation, ...]:
    return tuple(Mutation(id_, kind, edits, field_, message) for id_, edits, field_, message in rows)


OPEN = {"type": "open"}

OTHER_KINDS: tuple[Mutation, ...] = (
    *_of(
        "HardwareProfile",
        ("hw-as-it-is", {}, None, ""),
        ("hw-all", {"spec.nodeSelector": {"a": "b"}, "spec.costPerHour": 3, "spec.linkGbps": 400}, None, ""),
        ("hw-only-overhead", {"spec.aMs": 0}, None, ""),
        ("hw-no-a", {"spec.aMs": ABSENT}, "spec.aMs", "all of the six coefficients"),
        (
            "hw-one-speed",
            {f"spec.{each}": ABSENT for each in _SPEEDS if each != "aMs"},
            "spec.aMs",
            "all of the six coefficients",
        ),
        ("hw-no-speed", {f"spec.{each}": ABSENT for each in _SPEEDS}, None, ""),
        ("hw-negative", {"spec.dMsPerToken": -0.1}, "spec.dMsPerToken", "must be 0 or more"),
        ("hw-text", {"spec.kMsPerKvToken": "6.55e-5"}, "spec.kMsPerKvToken", "must be a number"),
        ("hw-no-gpu", {"spec.gpus": 0}, "spec.gpus", "must be 1 or more"),
        ("hw-link-zero", {"spec.linkGbps": 0}, "spec.linkGbps", "must be above 0"),
        ("hw-kv-below-block", {"spec.kvTokens": 15}, "spec.kvTokens", "kvTokens must be at least blockSize"),
        ("hw-no-time", {"spec.aMs": 0, "spec.overheadMs": 0}, "spec.aMs", "an engine step takes time"),
        ("hw-selector-number", {"spec.nodeSelector": {"gpu": 1}}, "spec.nodeSelector.gpu", "a text in quotes"),
        ("hw-snake-case", {"spec.kv_tokens": 5}, "spec.kv_tokens", "did you mean kvTokens?"),
    ),
    *_of(
        "ServiceLevelObjective",
        ("slo-as-it-is", {}, None, ""),
        ("slo-only-ttft", {"spec": {"ttftS": 1}}, None, ""),
        ("slo-empty", {"spec": {}}, "spec.ttftS", "an objective needs a threshold"),
        ("slo-ttft-zero", {"spec.ttftS": 0}, "spec.ttftS", "must be above 0"),
        ("slo-e2e-below-ttft", {"spec.e2eS": 1}, "spec.e2eS", "e2eS must be at least ttftS"),
        ("slo-percent", {"spec.attainment": 99}, "spec.attainment", "must be 1 or less"),
        ("slo-attainment-zero", {"spec.attainment": 0}, "spec.attainment", "must be above 0"),
        ("slo-priority", {"spec.priority": "high"}, "spec.priority", "must be a whole number"),
        ("slo-unit", {"spec.ttftMs": 200}, "spec.ttftMs", "did you mean ttftS?"),
        (
            "slo-header-upper-case",
            {"spec.match": {"headers": [{"name": "X-Tier", "value": "gold"}]}},
            "spec.match.headers[0].name",
            "must be lower-case letters",
        ),
        (
            "slo-header-twice",
            {"spec.match": {"headers": [{"name": "x", "value": "1"}, {"name": "x", "value": "2"}]}},
            "spec.match.headers[1]",
            "of an earlier entry",
        ),
    ),
    *_of(
        "SchedulingPolicy",
        ("policy-as-it-is", {}, None, ""),
        ("policy-empty", {"spec": {}}, None, ""),
        ("policy-no-spec", {"spec": ABSENT}, None, ""),
        (
            "policy-unknown",
            {"spec.prefill.type": "fastest"},
            "spec.prefill.type",
            ", least-requests, least-requests-running, ",
        ),
        ("policy-no-type", {"spec.decode.type": ABSENT}, "spec.decode.type", "is missing"),
        ("policy-parameter", {"spec.decode.parameters": {"seed": 1}}, "spec.decode.parameters.seed", "no parameter"),
        ("policy-parameters-list", {"spec.decode.parameters": []}, "spec.decode.parameters", "must be a mapping"),
        ("policy-composition", {"spec.decode": _WEIGHTED_SUM}, None, ""),
        (
            "policy-part-unknown",
            {"spec.decode": _WEIGHTED_SUM, "spec.decode.parameters.parts[0].type": "fastest"},
            "spec.decode.parameters.parts[0].type",
            "unknown placement 'fastest'",
        ),
        (
            "policy-part-weight-text",
            {"spec.decode": _WEIGHTED_SUM, "spec.decode.parameters.parts[0].weight": "much"},
            "spec.decode.parameters.parts[0].weight",
            "weight must be float, not str",
        ),
        (
            "policy-part-field",
            {"spec.decode": _WEIGHTED_SUM, "spec.decode.parameters.parts[0].factor": 2},
            "spec.decode.parameters.parts[0].factor",
            "is not a field here",
        ),
        (
            "policy-part-alone",
            {"spec.decode": _WEIGHTED_SUM, "spec.decode.parameters.parts[1]": ABSENT},
            "spec.decode.parameters.parts",
            "must be 2 to 8 policies, not 1",
        ),
        (
            "policy-normalise",
            {"spec.decode": _WEIGHTED_SUM, "spec.decode.parameters.normalise": "most"},
            "spec.decode.parameters.normalise",
            "must be one of raw, largest, range",
        ),
        ("policy-scaling", {"spec.scaling": {"type": "x"}}, "spec.scaling", "this release has no scaling policies"),
        ("policy-queue-unknown", {"spec.queue": {"type": "lifo"}}, "spec.queue.type", "unknown queue order 'lifo'"),
        (
            "policy-admission-unknown",
            {"spec.admission": {"type": "x"}},
            "spec.admission.type",
            "known: bounded, expected-ttft, open",
        ),
        ("policy-partition-unknown", {"spec.partition": {"type": "ares"}}, "spec.partition.type", "unknown partition"),
        (
            "policy-rescheduling-parameter",
            {"spec.rescheduling": {"type": "ares", "parameters": {"thetha": 0.1}}},
            "spec.rescheduling.parameters.thetha",
            "ares has no parameter 'thetha'",
        ),
        (
            "policy-rescheduling-choice",
            {"spec.rescheduling": {"type": "ares", "parameters": {"predictor": "crystal-ball"}}},
            "spec.rescheduling.parameters.predictor",
            "must be one of",
        ),
        (
            "policy-oracle",
            {"spec.decode.type": "oracle"},
            "spec.decode.type",
            "only `ballast simulate --policy` can do that",
        ),
        ("policy-queue-fcfs", {"spec.queue": {"type": "fcfs"}}, None, ""),
        ("policy-queue-default-admission", {"spec.queue": {"type": "uniboost"}}, None, ""),
        ("policy-queue-bounded", {"spec.queue": {"type": "sjf"}, "spec.admission": {"type": "bounded"}}, None, ""),
        ("policy-queue-turns", {"spec.queue": {"type": "uniboost", "parameters": {"enginePriority": True}}}, None, ""),
        ("policy-queue-null", {"spec.queue": {"type": "fcfs", "parameters": None}, "spec.admission": None}, None, ""),
        ("policy-partition-alone", {"spec.partition": {"type": "fixed"}}, None, ""),
        ("policy-rescheduling-alone", {"spec.rescheduling": {"type": "ares"}}, None, ""),
    ),
    *(
        Mutation(id_, "SchedulingPolicy", edits, "spec.queue", _NOTHING_WAITS, server_message=_NOTHING_WAITS)
        for id_, edits in (
            ("policy-nothing-waits", {"spec.queue": {"type": "uniboost"}, "spec.admission": OPEN}),
            ("policy-nothing-waits-open", {"spec.queue": {"type": "las"}, "spec.admission": OPEN}),
            (
                "policy-nothing-waits-untold",
                {"spec.queue": {"type": "sjf", "parameters": {"enginePriority": False}}, "spec.admission": OPEN},
            ),
            (
                "policy-nothing-waits-null",
                {"spec.queue": {"type": "sjf", "parameters": {"enginePriority": None}}, "spec.admission": OPEN},
            ),
        )
    ),
)

MUTATIONS: tuple[Mutation, ...] = (*MALFORMED_SERVING_POOLS, *ACCEPTED_SERVING_POOLS, *OTHER_KINDS)
