"""Which HardwareProfile a Deployment's nodes and GPUs mean: said by it, found among those given, or guessed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ballast_api import names
from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_cli.adopting.found import Engine

_GPU: Final = re.compile(r"(?<![a-z0-9])(gb200|b200|b300|h200|h100|h20|a100|a800|l40s|l40|l4|mi300x|t4)(?![0-9])")
_MODELS: Final = ((re.compile(r"qwen3?-?(\d+)b"), "qwen3-{}b"), (re.compile(r"llama-?3[.\d]*-(\d+)b"), "llama3-{}b"))


@dataclass(frozen=True, slots=True)
class Hardware:
    """A profile's name, its numbers where they are known, and how it was found."""

    name: str
    spec: HardwareProfileSpec | None
    said: str
    guessed: bool = True


def hardware_of(
    engine: Engine, given: Mapping[str, HardwareProfileSpec], shipped: Mapping[str, HardwareProfileSpec]
) -> Hardware:
    """`given`: HardwareProfiles that were read, `shipped`: those that Ballast has, by name."""
    annotations = engine.template.get("metadata", {}).get("annotations") or {}
    named = annotations.get(names.ANNOTATION_HARDWARE)
    if named:
        return Hardware(named, given.get(named) or shipped.get(named), "its pods name it", guessed=False)
    selector = engine.pod.get("nodeSelector") or {}
    resource = engine.gpus[0]
    for name, spec in sorted(given.items()):
        if spec.node_selector and spec.node_selector.items() <= selector.items():
            return Hardware(name, spec, "its nodeSelector is of these pods, too", guessed=False)
    gpu = _gpu(engine)
    if not gpu:
        name = "unknown-gpu" if resource else "cpu"
        return Hardware(name, None, "neither nodeSelector nor affinity say which GPU it is: name the right one")
    model = _model(engine.line.model)
    tensor = engine.tensor_parallel_size
    tried = [f"{gpu}-{model}-tp{tensor}", f"{gpu}-{model}"]
    fits = next((each for each in tried if each in shipped and shipped[each].gpus == tensor), None)
    if fits:
        said = (
            f"{tensor} x {gpu} for {engine.line.model}; `ballast profile show {fits}` prints it, give it nodeSelector"
        )
        return Hardware(fits, shipped[fits], said)
    said = f"{tensor} x {gpu}; no shipped profile for {engine.line.model} on it: measure one (docs/profiles/fit.md)"
    return Hardware(f"{gpu}-{_slug(engine.line.model)}-tp{tensor}", None, said)


def _gpu(engine: Engine) -> str:
    """The kind of GPU that the pods ask their nodes for."""
    asked = [*(engine.pod.get("nodeSelector") or {}).values(), *_affinities(engine.pod.get("affinity"))]
    found = (_GPU.search(str(each).lower()) for each in asked)
    return next((each[1] for each in found if each), "")


def _affinities(value: Any) -> list[str]:
    """All values of node affinity's expressions."""
    if isinstance(value, Mapping):
        here = value.get("values")
        inner = [each for item in value.values() for each in _affinities(item)]
        return [*(str(each) for each in here), *inner] if isinstance(here, list) else inner
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [each for item in value for each in _affinities(item)]
    return []


def _model(model: str) -> str:
    low = model.lower()
    return next((form.format(m[1]) for pattern, form in _MODELS if (m := pattern.search(low))), _slug(model))


def _slug(model: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")[:40] or "model"
