"""What a ServingPool refers to: names to read, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ballast_api.common import Resource
from ballast_api.conditions import Reason
from ballast_api.errors import InvalidInput
from ballast_api.hardware_profile import HardwareProfile, HardwareProfileSpec
from ballast_api.loading import parse_resource
from ballast_api.scheduling_policy import SchedulingPolicy, SchedulingPolicySpec
from ballast_api.service_level_objective import ServiceLevelObjective
from ballast_api.serving_pool import ServingPool, ServingPoolSpec
from ballast_operator.kinds import HARDWARE_PROFILE, OBJECTIVE, SCHEDULING_POLICY, Kind, Manifest
from ballast_operator.observed import Input

ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the cluster from the spec."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class References:
    """The usable ones of what a spec names, and a problem for each of the others."""

    policy: SchedulingPolicySpec | None
    """None if it is named and not usable; the default if none is named."""
    objective: ServiceLevelObjective | None
    profiles: Mapping[str, HardwareProfileSpec]
    problems: tuple[Problem, ...]

    def missing_profiles(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of `names` that are not usable."""
        return tuple(name for name in names if name not in self.profiles)


def named_objects(pool: Manifest) -> frozenset[tuple[Kind, str]]:
    """Kind and name of every custom resource that a ServingPool names, valid or not.

    Read with care from raw data: an index over all ServingPools must not stumble over one that is malformed.
    """
    spec = pool.get("spec")
    return frozenset(_named_in(spec)) if isinstance(spec, dict) else frozenset()


def _named_in(spec: Manifest) -> Iterator[tuple[Kind, str]]:
    for field, kind in (("policyRef", SCHEDULING_POLICY), ("sloRef", OBJECTIVE)):
        reference = spec.get(field)
        if isinstance(reference, dict) and isinstance(reference.get("name"), str):
            yield kind, reference["name"]
    pools = spec.get("pools")
    for entry in pools if isinstance(pools, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("hardware"), str):
            yield HARDWARE_PROFILE, entry["hardware"]


def parse_pool(manifest: Manifest) -> ServingPool:
    """The model. Raises `InvalidInput`. Status is left out: it is ours to write, never a reason to refuse a spec."""
    resource = parse_resource({key: value for key, value in manifest.items() if key != "status"})
    assert isinstance(resource, ServingPool)
    return resource


def resolve(spec: ServingPoolSpec, observed: Input) -> References:
    """Look every reference of `spec` up in what was read."""
    problems: list[Problem] = []
    policy: SchedulingPolicySpec | None = SchedulingPolicySpec()
    if spec.policy_ref is not None:
        where = f"SchedulingPolicy {spec.policy_ref.name} (spec.policyRef)"
        found = _parsed(SchedulingPolicy, observed.policy, where, _POLICY_REASONS, problems)
        policy = found.spec if found else None
    objective = None
    if spec.slo_ref is not None:
        where = f"ServiceLevelObjective {spec.slo_ref.name} (spec.sloRef)"
        objective = _parsed(ServiceLevelObjective, observed.objective, where, _SLO_REASONS, problems)
    profiles = {}
    for name, pools in _pools_by_hardware(spec).items():
        where = f"HardwareProfile {name} (of pool {', '.join(pools)})"
        profile = _parsed(HardwareProfile, observed.profiles.get(name), where, _PROFILE_REASONS, problems)
        if profile is not None:
            profiles[name] = profile.spec
    return References(policy=policy, objective=objective, profiles=profiles, problems=tuple(problems))


_POLICY_REASONS = (Reason.POLICY_NOT_FOUND, Reason.POLICY_INVALID)
_SLO_REASONS = (Reason.SLO_NOT_FOUND, Reason.SLO_INVALID)
_PROFILE_REASONS = (Reason.PROFILE_NOT_FOUND, Reason.PROFILE_INVALID)


def _parsed(
    model: type[ResourceT],
    manifest: Manifest | None,
    where: str,
    reasons: tuple[Reason, Reason],
    problems: list[Problem],
) -> ResourceT | None:
    not_found, invalid = reasons
    if manifest is None:
        problems.append(Problem(not_found, f"{where} does not exist"))
        return None
    try:
        resource = parse_resource({key: value for key, value in manifest.items() if key != "status"})
    except InvalidInput as error:
        problems.append(Problem(invalid, f"{where} is not valid: {'; '.join(str(p) for p in error.problems)}"))
        return None
    assert isinstance(resource, model)
    return resource


def _pools_by_hardware(spec: ServingPoolSpec) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for pool in spec.pools:
        result.setdefault(pool.hardware, []).append(pool.name)
    return result
