"""Which pods of a flexible pool have which role. Pure.

A pod's role is its label, so it is in force at once, and stays with the pod through restarts of its containers and of
the operator. What is computed is the difference between the labels and the counts that are asked for: a pod that is new
gets the role that lacks, and others change theirs only as far as that does not do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ballast_api.demand_report import Load
from ballast_core.model import Role
from ballast_core.policies.scaling.protocol import Counts
from ballast_operator.scaling.steered import Instance

_NO_LOAD = Load()


@dataclass(frozen=True, slots=True)
class Flip:
    """A pod that is to have another role."""

    instance: Instance
    role: Role


def flips(instances: Sequence[Instance], wanted: Counts, loads: Mapping[str, Load]) -> tuple[Flip, ...]:
    """The changes for the pods of one pool. `loads`: requests on each pod, by its name.

    Engines of different KV revisions never work together, so each revision's pods get their share of both roles; a lone
    one keeps both. Of the pods that may change, those go first that are not ready, then those with the least to do.
    """
    revisions = sorted({each.revision for each in instances})
    found: list[Flip] = []
    for revision in revisions:
        found += _of_revision(
            [each for each in instances if each.revision == revision and not each.ending], wanted, loads
        )
    return tuple(found)


def _of_revision(there: Sequence[Instance], wanted: Counts, loads: Mapping[str, Load]) -> list[Flip]:
    if not wanted.replicas:
        return []
    if len(there) == 1 and wanted.prefill and wanted.decode:
        return [Flip(each, Role.FLEXIBLE) for each in there if each.role is not Role.FLEXIBLE]
    prefill = split(wanted, len(there)).prefill
    short = {Role.PREFILL: prefill, Role.DECODE: len(there) - prefill}
    free: list[Instance] = []
    for role in short:
        own = sorted((each for each in there if each.role is role), key=lambda each: _cost(each, loads), reverse=True)
        free += own[short[role] :]
        short[role] -= len(own[: short[role]])
    free += [each for each in there if each.role is Role.FLEXIBLE]
    return [Flip(each, Role.PREFILL if k < short[Role.PREFILL] else Role.DECODE) for k, each in enumerate(free)]


def split(wanted: Counts, count: int) -> Counts:
    """So many instances in the same proportion. A stage that has one keeps one."""
    prefill = round(wanted.prefill / wanted.replicas * count) if wanted.replicas else 0
    most = count - 1 if wanted.decode else count
    prefill = max(min(prefill, most), 1 if wanted.prefill else 0)
    return Counts(min(prefill, count), max(0, count - prefill))


def _cost(instance: Instance, loads: Mapping[str, Load]) -> tuple[bool, int, int, str]:
    """Sorts by what its change would cost."""
    load = loads.get(instance.name, _NO_LOAD)
    return instance.ready, load.decoding_tokens, load.prefilling + load.decoding, instance.name
