"""HardwareProfiles that the spec names no more while pods go by them. Pure.

A pod that mounts a key which its ConfigMap does not have cannot start, nor can its container once more; and gateways
predict by these numbers what its engine does. So they stay as they were written last until such pods have gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ballast_api import names
from ballast_api.hardware_profile import EngineProfile
from ballast_api.serving_pool import ServingPoolSpec
from ballast_operator.kinds import CONFIG_MAP, Manifest
from ballast_operator.observed import Observed
from ballast_operator.planning.ownership import applied_fields
from ballast_operator.rollouts.workloads import has_ended, pool_templates
from ballast_operator.specs.hold import PROGRAM


def leaves_profiles(observed: Observed, spec: ServingPoolSpec) -> bool:
    """Whether numbers that we have written are of a profile that no pool of the spec names. Keys of others stay."""
    ours = (applied_fields(_written(observed), names.MANAGER) or {}).get("f:data", {})
    return any(f"f:{key}" in ours for key in _unnamed(observed, spec))


def former_profiles(observed: Observed, spec: ServingPoolSpec) -> Mapping[str, str]:
    """Numbers as JSON, by name of the profile: of those that no pool of the spec names, and that a pod has, or the
    template of a workload."""
    used = set(_hardware(observed))
    return {name: text for name, text in _unnamed(observed, spec).items() if name in used}


def former_numbers(former: Mapping[str, str]) -> Mapping[str, EngineProfile]:
    """The same for gateways, without what somebody has spoilt."""
    found = {}
    for name, text in former.items():
        try:
            found[name] = EngineProfile.parse(json.loads(text))
        except ValueError:
            continue
    return found


def _unnamed(observed: Observed, spec: ServingPoolSpec) -> Mapping[str, str]:
    """What the ConfigMap has beside what the spec asks for."""
    wanted = {PROGRAM, *(pool.hardware for pool in spec.pools)}
    return {key: text for key, text in (_written(observed).get("data") or {}).items() if key not in wanted}


def _written(observed: Observed) -> Manifest:
    return observed.child(CONFIG_MAP.key(names.profiles_name(observed.name))) or {"metadata": {}}


def _hardware(observed: Observed) -> Iterator[str]:
    pods = (pod for pod in observed.pods if not has_ended(pod))
    for each in (*pods, *pool_templates(observed.children)):
        yield _annotations(each).get(names.ANNOTATION_HARDWARE, "")


def _annotations(manifest: Manifest) -> Mapping[str, str]:
    return (manifest.get("metadata") or {}).get("annotations") or {}
