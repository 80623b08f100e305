"""What a ServingPool refers to: the names to read, and the usable ones of what was read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ballast_api.errors import InvalidInput
from ballast_api.gateway_settings import ClassObjective
from ballast_api.hardware_profile import HardwareProfile, HardwareProfileSpec
from ballast_api.loading import parse_resource
from ballast_api.resources import AnyResource
from ballast_api.scheduling_policy import SchedulingPolicy, SchedulingPolicySpec
from ballast_api.service_level_objective import ServiceLevelObjective
from ballast_api.serving_pool import ServingPool, ServingPoolSpec
from ballast_operator.kinds import HARDWARE_PROFILE, OBJECTIVE, SCHEDULING_POLICY, Kind, Manifest
from ballast_operator.observed import Observed
from ballast_operator.problems.problem import Problem
from ballast_operator.problems.references import Named, not_found, not_valid


@dataclass(frozen=True, slots=True)
class References:
    """The usable ones of what a spec names, and a problem for each of the others."""

    policy: SchedulingPolicySpec | None
    """The default if the spec names none; None if it names one that is not usable."""
    profiles: Mapping[str, HardwareProfileSpec]
    """By name; those that are not usable are left out."""
    objectives: tuple[ClassObjective, ...] | None
    """In the order of the spec; None if one of them is not usable."""
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
    several = spec.get("sloRefs")
    references = [(spec.get("policyRef"), SCHEDULING_POLICY), (spec.get("sloRef"), OBJECTIVE)]
    references += [(reference, OBJECTIVE) for reference in (several if isinstance(several, list) else ())]
    for reference, kind in references:
        if isinstance(reference, dict) and isinstance(reference.get("name"), str):
            yield kind, reference["name"]
    pools = spec.get("pools")
    for entry in pools if isinstance(pools, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("hardware"), str):
            yield HARDWARE_PROFILE, entry["hardware"]


def named_gateways(pool: Manifest) -> frozenset[tuple[str | None, str]]:
    """Namespace and name of every parent that a ServingPool names, as carefully."""
    gateway = (pool.get("spec") or {}).get("gateway")
    parents = gateway.get("parentRefs") if isinstance(gateway, dict) else None
    return frozenset(
        (parent.get("namespace") or pool["metadata"]["namespace"], parent["name"])
        for parent in (parents if isinstance(parents, list) else ())
        if isinstance(parent, dict) and isinstance(parent.get("name"), str)
    )


def parse_pool(manifest: Manifest) -> ServingPool:
    """The model of a ServingPool. Raises `InvalidInput`."""
    resource = parse(manifest)
    assert isinstance(resource, ServingPool)
    return resource


def parse(manifest: Manifest) -> AnyResource:
    """The model of a custom resource. Raises `InvalidInput`. The operator writes the status: no reason to refuse."""
    return parse_resource({key: value for key, value in manifest.items() if key != "status"})


def resolve(spec: ServingPoolSpec, observed: Observed) -> References:
    """Look every reference of `spec` up in what was read."""
    problems: list[Problem] = []
    policy: SchedulingPolicySpec | None = SchedulingPolicySpec()
    if spec.policy_ref is not None:
        named = Named("spec.policyRef", SCHEDULING_POLICY.kind, spec.policy_ref.name)
        found = _usable(named, observed.policy, problems)
        policy = found.spec if isinstance(found, SchedulingPolicy) else None
    objectives = _objectives(spec, observed, problems)
    profiles = {}
    for named in _hardware(spec):
        profile = _usable(named, observed.profiles.get(named.name), problems)
        if isinstance(profile, HardwareProfile):
            profiles[named.name] = profile.spec
    return References(policy=policy, profiles=profiles, objectives=objectives, problems=tuple(problems))


def _objectives(
    spec: ServingPoolSpec, observed: Observed, problems: list[Problem]
) -> tuple[ClassObjective, ...] | None:
    found = []
    for index, name in enumerate(spec.objective_names):
        field = "spec.sloRef" if spec.slo_ref is not None else f"spec.sloRefs[{index}]"
        objective = _usable(Named(field, OBJECTIVE.kind, name), observed.objectives.get(name), problems)
        if isinstance(objective, ServiceLevelObjective):
            given = {each: getattr(objective.spec, each) for each in objective.spec.model_fields_set}
            found.append(ClassObjective(name=name, **given))
    return tuple(found) if len(found) == len(spec.objective_names) else None


def _usable(named: Named, manifest: Manifest | None, problems: list[Problem]) -> AnyResource | None:
    if manifest is None:
        problems.append(not_found(named))
        return None
    try:
        return parse(manifest)
    except InvalidInput as error:
        problems.append(not_valid(named, error))
        return None


def _hardware(spec: ServingPoolSpec) -> list[Named]:
    """Each HardwareProfile once, with the first field that names it and all pools that do."""
    users: dict[str, list[int]] = {}
    for index, pool in enumerate(spec.pools):
        users.setdefault(pool.hardware, []).append(index)
    return [
        Named(
            f"spec.pools[{indexes[0]}].hardware",
            HARDWARE_PROFILE.kind,
            name,
            users=tuple(spec.pools[index].name for index in indexes),
        )
        for name, indexes in users.items()
    ]
