"""The canary of a ServingPool, if its spec wants one and a KV revision is being replaced. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ballast_api.serving_pool import ServingPoolSpec
from ballast_operator.kinds import Manifest, ObjectKey, key_of
from ballast_operator.observed import Observed
from ballast_operator.rollouts.canary import Canary, Memory, has_room, next_memory, pods_of, remembered
from ballast_operator.rollouts.rollout import Rolling
from ballast_operator.rollouts.workloads import counts_of, revision_of, workloads_of


def canary_of(
    observed: Observed,
    spec: ServingPoolSpec,
    revision: str,
    rolling: Mapping[str, Rolling],
    targets: Mapping[str, ObjectKey],
) -> Canary | None:
    """None where no pod of another revision is replaced, and on the way back to a revision that has pods already.

    `rolling`: pools by name, without a canary. `targets`: the workloads of the wanted revision.
    """
    wish = spec.rollout.canary
    others = {
        name: [each for each in workloads_of(observed, name) if key_of(each) != targets[name]] for name in rolling
    }
    replaced = {name: roll for name, roll in rolling.items() if roll.wanted and _have_others(others[name], revision)}
    if wish is None or not replaced:
        return None
    live = [each for each in observed.children if key_of(each) in targets.values()]
    memory = remembered(map(_annotations, live))
    if memory is None:
        if any(roll.new.most for roll in replaced.values()):
            return None
        memory = Memory()
    least = {name: pods_of(wish.weight, roll.wanted) for name, roll in replaced.items()}
    ready = all(roll.new.asked >= least[name] and roll.steady for name, roll in replaced.items())
    counted = None if observed.measured is None else observed.measured.canaries.get(revision)
    age_s = observed.canary_ages_s.get(memory.since)
    memory, message = next_memory(memory, wish, counted, ready=ready, now=observed.now, age_s=age_s)
    unfit = tuple(name for name, roll in replaced.items() if not has_room(roll.wanted, roll.surge))
    return Canary(revision, wish, memory, message, unfit)


def _have_others(workloads: Iterable[Manifest], revision: str) -> bool:
    """Whether some instance is of another revision. Those of the same one may be on another number of nodes."""
    return any(revision_of(each) != revision and counts_of(each).most for each in workloads)


def with_canary(deployment: Manifest, canary: Canary | None) -> Manifest:
    """The Deployment, with what is to be remembered of its canary."""
    if canary is None:
        return deployment
    metadata = deployment["metadata"]
    annotations = {**(metadata.get("annotations") or {}), **canary.memory.annotations()}
    return {**deployment, "metadata": {**metadata, "annotations": annotations}}


def _annotations(manifest: Manifest) -> Mapping[str, str]:
    return manifest["metadata"].get("annotations") or {}
