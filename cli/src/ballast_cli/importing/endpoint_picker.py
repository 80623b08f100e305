"""`EndpointPickerConfig` of llm-d (`llm-d.ai/v1alpha1`) as a SchedulingPolicy and gateway settings, with an account.

llm-d maximises a weighted sum of scores in [0, 1]. Ballast minimises costs: one minus a score that spans its range from
the best endpoint to the worst is a cost normalised by its range, so a profile becomes a `weighted-sum` with the same
weights.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from ballast_api.errors import InvalidInput, Problem
from ballast_api.loading import parse_resource
from ballast_cli.importing.plugins import PLUGINS, Entry, Fit
from ballast_core.policies.placement.composition import MAX_PARTS

API_VERSIONS: Final = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
_FIELDS: Final = frozenset(
    {
        "apiVersion",
        "kind",
        "featureGates",
        "plugins",
        "schedulingProfiles",
        "dataLayer",
        "requestHandler",
        "flowControl",
    }
)
_PLUGIN_FIELDS: Final = frozenset({"name", "type", "parameters"})
_PROFILE_FIELDS: Final = frozenset({"name", "plugins"})
_USE_FIELDS: Final = frozenset({"pluginRef", "weight"})
_FLOW_CONTROL: Final = "flowControl"
_OF_PROFILES: Final = ("filter", "scorer", "picker")
"""Kinds of plug-ins that do something in profiles alone."""
_OF_FLOW_CONTROL: Final = ("detector", "order", "fairness")
"""Kinds that do something where requests may wait."""
_FLOW_FIELDS: Final = {
    "maxBytes": "waiting requests are counted, not their bytes",
    "noEndpointRequestTTL": "limits.holdS is set by hand: it answers 503 at once by default",
    "defaultPriorityBand": "one queue, ordered by the queue policy",
    "defaultNegativePriorityBand": "one queue, ordered by the queue policy",
    "priorityBands": "one queue; with trust.priorities clients may set priorities",
    "usageLimitPolicyPluginRef": "limits are admission's",
    "enableEviction": "nothing that runs is evicted",
}
_DATA_FIELDS: Final = {
    "discovery": "discovery is set in the gateway's settings",
    "peerDiscovery": "replicas are not named here",
    "crossReplicaSyncerPluginRef": "replicas share no plug-in",
    "crossReplicaSyncInterval": "replicas share no plug-in",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one thing in the file."""

    path: str
    """Where it stands in the file."""
    what: str
    fit: Fit
    said: str


@dataclass(slots=True)
class Imported:
    """The result."""

    policy: dict[str, Any] = field(default_factory=dict)
    """`spec` of a SchedulingPolicy."""
    settings: dict[str, Any] = field(default_factory=dict)
    """`gateway.settings` of a ServingPool, or fields of a gateway's file."""
    findings: list[Finding] = field(default_factory=list)

    def manifest(self, name: str) -> dict[str, Any]:
        """The SchedulingPolicy of this name. Raises `InvalidInput` if the name is none."""
        body = {
            "apiVersion": "serving.ballast.dev/v1alpha1",
            "kind": "SchedulingPolicy",
            "metadata": {"name": name},
            "spec": self.policy,
        }
        parse_resource(body)
        return body


@dataclass(frozen=True, slots=True)
class _Plugin:
    """An entry of `plugins`."""

    name: str
    path: str
    type: str
    parameters: Mapping[str, Any]
    entry: Entry | None


def import_config(text: str, *, source: str = "") -> Imported:
    """Read the YAML of one EndpointPickerConfig. Raises `InvalidInput` with field and fix."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(source, [Problem("", f"is no YAML: {' '.join(str(error).split())}")]) from None
    reading = _Reading(document, source)
    reading.check()
    return reading.convert()


class _Reading:
    def __init__(self, document: object, source: str) -> None:
        if not isinstance(document, dict):
            raise InvalidInput(source, [Problem("", "must be a mapping: an EndpointPickerConfig")])
        self._document: dict[str, Any] = document
        self._source = source
        self._problems: list[Problem] = []
        self._plugins: dict[str, _Plugin] = {}
        self._profiles: dict[str, str] = {}
        """Their paths, by name."""
        self._imported = Imported()

    # --- checks -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what is wrong with the file itself, all at once."""
        document = self._document
        if document.get("apiVersion") not in API_VERSIONS:
            self._wrong("apiVersion", f"must be {' or '.join(API_VERSIONS)}, not {document.get('apiVersion')!r}")
        if document.get("kind") != "EndpointPickerConfig":
            self._wrong("kind", f"must be EndpointPickerConfig, not {document.get('kind')!r}")
        self._check_fields("", document, _FIELDS)
        for number, plugin in enumerate(self._list(document, "plugins")):
            self._take_plugin(f"plugins[{number}]", plugin)
        for number, profile in enumerate(self._list(document, "schedulingProfiles")):
            self._check_profile(f"schedulingProfiles[{number}]", profile)
        for name in ("dataLayer", "requestHandler", "flowControl"):
            fields = document.get(name) or {}
            if not isinstance(fields, dict) or not all(isinstance(each, str) for each in fields):
                self._wrong(name, "must be a mapping of names to values")
        for number, gate in enumerate(self._list(document, "featureGates")):
            if not isinstance(gate, str):
                self._wrong(f"featureGates[{number}]", "must be a name, such as flowControl")
        if self._problems:
            raise InvalidInput(self._source, self._problems)

    def _wrong(self, path: str, said: str) -> None:
        self._problems.append(Problem(path, said))

    def _check_fields(self, path: str, found: Mapping[Any, Any], known: AbstractSet[str]) -> None:
        """llm-d refuses what it does not know, too: a `weight` with a typo would be a weight of 1."""
        for name in sorted(map(str, found.keys() - known)):
            near = difflib.get_close_matches(name, known, n=1)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            self._wrong(f"{path}.{name}" if path else name, f"is not a field here; {fix}")

    def _list(self, parent: Mapping[str, Any], name: str) -> list[Any]:
        found = parent.get(name)
        if found is not None and not isinstance(found, list):
            self._wrong(name, "must be a list")
            return []
        return found or []

    def _take_plugin(self, path: str, plugin: object) -> None:
        if not isinstance(plugin, dict) or not isinstance(plugin.get("type"), str):
            self._wrong(f"{path}.type", "is missing; add the plug-in's type, such as queue-scorer")
            return
        self._check_fields(path, plugin, _PLUGIN_FIELDS)
        parameters = plugin.get("parameters") or {}
        if not isinstance(parameters, dict):
            self._wrong(f"{path}.parameters", "must be a mapping of names to values")
            return
        name = plugin.get("name") or plugin["type"]
        if not isinstance(name, str):
            self._wrong(f"{path}.name", "must be text")
            return
        if name in self._plugins:
            self._wrong(
                f"{path}.name", f"{name!r} is the name of {self._plugins[name].path}, too; names must be unique"
            )
            return
        self._plugins[name] = _Plugin(name, path, plugin["type"], parameters, PLUGINS.get(plugin["type"]))

    def _check_profile(self, path: str, profile: object) -> None:
        name = profile.get("name") if isinstance(profile, dict) else None
        if not isinstance(profile, dict) or not isinstance(name, str) or not name:
            self._wrong(f"{path}.name", "is missing; add a name")
            return
        self._check_fields(path, profile, _PROFILE_FIELDS)
        if name in self._profiles:
            self._wrong(f"{path}.name", f"{name!r} is the name of {self._profiles[name]}, too; names must be unique")
        self._profiles.setdefault(name, path)
        for number, use in enumerate(self._list(profile, "plugins")):
            at = f"{path}.plugins[{number}]"
            if not isinstance(use, dict) or not isinstance(use.get("pluginRef"), str):
                self._wrong(f"{at}.pluginRef", "is missing; add the name of a plug-in")
                continue
            self._check_fields(at, use, _USE_FIELDS)
            self._check_reference(f"{at}.pluginRef", use["pluginRef"])
            weight = use.get("weight", 1.0)
            if not _is_weight(weight):
                self._wrong(f"{at}.weight", f"must be a finite number, 0 or more, not {weight!r}")

    def _check_reference(self, path: str, name: str) -> None:
        if name not in self._plugins:
            near = difflib.get_close_matches(name, self._plugins, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"plugins has {', '.join(self._plugins) or 'none'}"
            self._wrong(path, f"no plug-in is called {name!r}; {fix}")

    # --- conversion ---------------------------------------------------------------------------------------------

    def convert(self) -> Imported:
        """Map what maps. The file has been checked."""
        made = self._imported
        profiles = self._all_profiles()
        stages = self._stages(profiles)
        used = {
            use["pluginRef"]
            for name in stages.values()
            for use in profiles[name][1]
            if use.get("weight", 1.0) > 0 or not self._is(use, "scorer")
        }
        for plugin in self._plugins.values():
            self._say_plugin(plugin, used)
        for name, (path, _) in profiles.items():
            if name not in stages.values():
                self._say(path, name, Fit.NONE, "no stage of a request runs this profile")
        placements = {name: self._placement(name, *profiles[name]) for name in dict.fromkeys(stages.values())}
        for stage, name in stages.items():
            if placements[name] is not None:
                made.policy[stage] = deepcopy(placements[name])  # one value twice would be an anchor in YAML
        self._settings(used)
        self._flow_control()
        self._rest()
        if self._problems:
            raise InvalidInput(self._source, self._problems)
        return made

    def _say(self, path: str, what: str, fit: Fit, said: str) -> None:
        self._imported.findings.append(Finding(path, what, fit, said))

    def _say_plugin(self, plugin: _Plugin, used: AbstractSet[str]) -> None:
        entry = plugin.entry
        if entry is None:
            self._say(plugin.path, plugin.type, Fit.NONE, "is not a plug-in of llm-d's router v0.10; it is left out")
            return
        idle = self._idle(plugin, entry, used) if entry.fit is not Fit.NONE else None
        if idle is not None:
            self._say(plugin.path, plugin.type, Fit.NONE, f"{idle}; it is left out")
            return
        self._say(plugin.path, plugin.type, entry.fit, entry.said)
        for name in plugin.parameters:
            if name not in entry.parameters and entry.fit is not Fit.NONE:
                self._say(f"{plugin.path}.parameters.{name}", plugin.type, Fit.NONE, "has no counterpart")

    def _idle(self, plugin: _Plugin, entry: Entry, used: AbstractSet[str]) -> str | None:
        """Why a plug-in that maps does nothing in this file; None if it does something."""
        if entry.kind in _OF_PROFILES and plugin.name not in used:
            return "no profile that runs uses it with a weight above 0"
        if entry.kind in _OF_FLOW_CONTROL and not self._flow_control_is_on():
            return "the feature gate flowControl is off"
        if entry.kind == "admitter" and self._flow_control_is_on():
            return "a policy has one admission, and flowControl makes it"
        return None

    def _flow_control_is_on(self) -> bool:
        gates = self._document.get("featureGates") or []
        return any(gate.partition("=")[0] == _FLOW_CONTROL and not gate.endswith("=false") for gate in gates)

    def _is(self, use: Mapping[str, Any], kind: str) -> bool:
        """Whether a profile uses a plug-in of this kind there."""
        entry = self._plugins[use["pluginRef"]].entry
        return entry is not None and entry.kind == kind

    def _all_profiles(self) -> dict[str, tuple[str, list[Mapping[str, Any]]]]:
        """Path and used plug-ins of each, by name. As llm-d fills up what is left out: a profile of all that can be in
        one, and a picker."""
        written = self._document.get("schedulingProfiles") or []
        profiles = {
            profile["name"]: (f"schedulingProfiles[{number}]", list(profile.get("plugins") or []))
            for number, profile in enumerate(written)
        }
        if not profiles:
            uses = [{"pluginRef": one.name} for kind in _OF_PROFILES for one in self._of_kind(kind)]
            profiles["default"] = ("schedulingProfiles", uses)
        picker = next((one.name for one in self._of_kind("picker")), None)
        for _, uses in profiles.values():
            if picker is not None and not any(self._is(use, "picker") for use in uses):
                uses.append({"pluginRef": picker})
        return profiles

    def _stages(self, profiles: Mapping[str, object]) -> dict[str, str]:
        """The profile that places each stage."""
        handler = next((one for one in self._of_kind("handler") if "profile-handler" in one.type), None)
        split = handler is not None and handler.type in {"disagg-profile-handler", "pd-profile-handler"}
        named = {
            stage: self._profile_of(handler, stage) if split and handler is not None else next(iter(profiles))
            for stage in ("prefill", "decode")
        }
        return {stage: name for stage, name in named.items() if name in profiles}

    @staticmethod
    def _profile_of(handler: _Plugin, stage: str) -> str:
        nested = handler.parameters.get("profiles")
        named = nested.get(stage) if isinstance(nested, dict) else handler.parameters.get(f"{stage}Profile")
        return str(named or stage)

    def _of_kind(self, kind: str) -> list[_Plugin]:
        return [one for one in self._plugins.values() if one.entry is not None and one.entry.kind == kind]

    def _placement(self, name: str, path: str, uses: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
        weights: dict[str, float] = {}
        for use in uses:
            plugin = self._plugins[use["pluginRef"]]
            if plugin.type == "random-picker":
                return {"type": "random"}
            if plugin.entry is not None and plugin.entry.placement is not None and use.get("weight", 1.0) > 0:
                placement = plugin.entry.placement
                weights[placement] = weights.get(placement, 0.0) + float(use.get("weight", 1.0))
        if not weights:
            self._say(path, name, Fit.NONE, "no scorer of it maps: Ballast's default places in its stead")
            return None
        if len(weights) == 1:
            return {"type": next(iter(weights))}
        kept = dict(sorted(weights.items(), key=lambda item: -item[1])[:MAX_PARTS])
        parts = [{"type": placement, "weight": weight} for placement, weight in kept.items()]
        return {"type": "weighted-sum", "parameters": {"normalise": "range", "parts": parts}}

    def _settings(self, used: AbstractSet[str]) -> None:
        settings = self._imported.settings
        for plugin in self._of_kind("picker"):
            most = plugin.parameters.get("maxNumOfEndpoints", 1)
            path = f"{plugin.path}.parameters.maxNumOfEndpoints"
            if not isinstance(most, int) or isinstance(most, bool) or most < 1:
                self._wrong(path, f"must be a whole number, 1 or more, not {most!r}")
            elif most > 1 and plugin.name in used:
                settings["picker"] = {"fallbacks": min(most - 1, 8)}
                self._say(path, plugin.type, Fit.EXACT, f"picker.fallbacks: {min(most - 1, 8)}, in order of cost")
        if {"precise-prefix-cache-scorer", "precise-prefix-cache-producer"} & {p.type for p in self._plugins.values()}:
            settings["kvEvents"] = {"enabled": True}

    def _flow_control(self) -> None:
        """Without flow control llm-d lets requests through, saturated or not."""
        flow = self._document.get("flowControl") or {}
        for number, gate in enumerate(self._document.get("featureGates") or []):
            known = gate.partition("=")[0] == _FLOW_CONTROL
            said = "admission and queue, see flowControl" if known else "no counterpart"
            self._say(f"featureGates[{number}]", gate, Fit.NEAR if known else Fit.NONE, said)
        if not self._flow_control_is_on():
            for name in sorted(flow):
                self._say(f"flowControl.{name}", name, Fit.NONE, "the feature gate flowControl is off")
            keeps = any(one.type == "latency-slo-admitter" for one in self._plugins.values())
            self._imported.policy["admission"] = {"type": "expected-ttft" if keeps else "open"}
            if keeps:
                return
            self._say(
                "featureGates", "flowControl is off", Fit.EXACT, "admission open: no request waits in the gateway"
            )
            return
        parameters: dict[str, Any] = {}
        waiting = {name: _quantity(value) for name, value in flow.items() if name == "maxRequests"}
        self._take_number("flowControl", waiting, "maxRequests", parameters, "maxWaiting", whole=True)
        given_ttl = flow.get("defaultRequestTTL")
        ttl = _seconds(given_ttl)
        if given_ttl is not None and ttl is None:
            self._wrong("flowControl.defaultRequestTTL", f"must be a duration such as 60s, not {given_ttl!r}")
        elif ttl:
            parameters["maxWaitS"] = ttl
            self._say("flowControl.defaultRequestTTL", str(ttl), Fit.EXACT, "admission bounded: maxWaitS")
        elif ttl == 0:
            self._say("flowControl.defaultRequestTTL", "0", Fit.NONE, "each wait has an end: maxWaitS, 60 s unless set")
        for plugin in self._of_kind("detector"):
            at, given = f"{plugin.path}.parameters", plugin.parameters
            self._take_number(at, given, "maxConcurrency", parameters, "maxDecodeRequests", whole=True)
            self._take_number(at, given, "kvCacheUtilThreshold", parameters, "maxKvRatio", whole=False)
        self._imported.policy["admission"] = {"type": "bounded", **({"parameters": parameters} if parameters else {})}
        orders = [one.type for one in self._of_kind("order")]
        if orders:
            self._imported.policy["queue"] = {"type": "fcfs" if orders[0] == "fcfs" else "edf"}
        for name in sorted(flow.keys() - {"maxRequests", "defaultRequestTTL", "saturationDetector"}):
            self._say(f"flowControl.{name}", name, Fit.NONE, _FLOW_FIELDS.get(name, "is no field that is known"))

    def _take_number(
        self, path: str, given: Mapping[str, Any], name: str, parameters: dict[str, Any], ours: str, *, whole: bool
    ) -> None:
        value = given.get(name)
        if value is None:
            return
        if isinstance(value, int if whole else int | float) and not isinstance(value, bool) and value > 0:
            parameters[ours] = value
            self._say(f"{path}.{name}", str(value), Fit.NEAR, f"admission bounded: {ours}")
        else:
            kind = "a whole number" if whole else "a number"
            self._wrong(f"{path}.{name}", f"must be {kind} above 0, not {value!r}")

    def _rest(self) -> None:
        data = self._document.get("dataLayer") or {}
        for name in sorted(data.keys() - {"injectDefaults", "sources"}):
            self._say(f"dataLayer.{name}", name, Fit.NONE, _DATA_FIELDS.get(name, "is no field that is known"))
        for name in ("injectDefaults", "sources"):
            if name in data:
                self._say(f"dataLayer.{name}", name, Fit.EXACT, "engines' metrics and models are always read")
        if "parsers" in (self._document.get("requestHandler") or {}):
            self._say("requestHandler.parsers", "parsers", Fit.NEAR, "bodies are read by their path, as vLLM serves it")


def _is_weight(value: object) -> bool:
    """Whether it is a number, 0 or more, that a float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_SCALES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_QUANTITY: Final = re.compile(r"([0-9]{1,18})(|k|M|G|Ki|Mi|Gi)")


def _seconds(duration: object) -> float | None:
    """Go's `60s`, `1m30s`, `500ms`, `0`; None if it is none of these."""
    if duration == "0":
        return 0.0
    if not isinstance(duration, str) or not duration or _PART.sub("", duration):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(duration))


def _quantity(value: object) -> object:
    """Kubernetes' `5000` and `5k` as whole numbers; anything else as it is."""
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else int(found[1]) * _SCALES[found[2]]
