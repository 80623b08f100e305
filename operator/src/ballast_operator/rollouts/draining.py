"""Instances are emptied before they go: which ones, and how many pods a Deployment may ask for meanwhile. Pure.

Kubernetes picks the pod that a smaller Deployment loses, by its deletion cost among others. So each victim gets, one
after the other and each read back before the next: the mark that makes gateways send it nothing new and move out what
can move; once it is empty, or the deadline has passed, the lowest deletion cost; then the Deployment asks for one pod
fewer. Each step is computed from what is there, so it is right after any interruption, and it goes back as well: a
Deployment that may keep its pods takes their marks off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ballast_api.load_report import EndpointLoad
from ballast_operator.gateways.loads import Loads

_REPORT_S: Final = 10.0
"""Age of an engine's own report beyond which it says nothing."""
_SETTLE_S: Final = 2.0
"""From a mark until gateways are believed about it: one may still act on what stood there before."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A pod of a Deployment that is not ending."""

    name: str
    ready: bool = True
    marked_s: float | None = None
    """Seconds since it was marked as draining; None if it is not."""
    costed: bool = False
    """Whether it has the lowest deletion cost."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that is to go."""

    name: str
    marked_s: float
    """Seconds since it was marked; 0 if that is still to be written."""
    goes: bool = False
    """It is empty, or its time is over."""
    costed: bool = False
    """Whether it was seen with the lowest deletion cost."""
    left: int | None = 0
    """Requests that are still there; None if that is not known."""
    tied: int = 0
    """Those of them that cannot move."""

    @property
    def late(self) -> bool:
        """Whether it goes although it is not known to be empty."""
        return self.goes and self.left != 0


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done with one Deployment now."""

    replicas: int
    """Pods to ask for."""
    victims: tuple[Victim, ...] = ()
    """Pods that are to be marked, and to get the lowest deletion cost if they go."""
    released: tuple[str, ...] = ()
    """Pods whose marks are to be taken off."""


def next_step(
    asked: int, target: int, instances: Sequence[Instance], loads: Loads | None, *, deadline_s: float
) -> Step:
    """The step from `asked` pods to `target`. `loads`: None if no gateway could be asked.

    Pods that do not exist, or are above the number asked for already, are none that anybody has to be emptied for.
    """
    surplus, excess = max(asked - target, 0), max(len(instances) - asked, 0)
    absent = min(max(asked - len(instances), 0), surplus)
    found = {each.name: _victim(each, loads, deadline_s) for each in instances}
    marked = [each for each in instances if each.marked_s is not None]
    marked.sort(key=lambda each: (not each.costed, not found[each.name].goes, -(each.marked_s or 0.0), each.name))
    kept = marked[: surplus - absent + excess]
    released = tuple(each.name for each in instances if each.costed or each.marked_s is not None)
    further = surplus - absent - max(len(kept) - excess, 0)
    others = sorted((each for each in instances if each.marked_s is None), key=lambda each: _price(each, loads))
    victims = tuple(found[each.name] for each in (*kept, *others[:further]))
    released = tuple(name for name in released if name not in {each.name for each in victims})
    costed_by_mistake = any(each.costed for each in instances if each.name in released)
    seen = sum(each.goes and each.costed for each in victims)
    lowered = 0 if costed_by_mistake else max(seen - excess, 0)
    return Step(max(target, asked - absent - lowered), victims, released)


def _victim(instance: Instance, loads: Loads | None, deadline_s: float) -> Victim:
    if instance.marked_s is None:
        return Victim(instance.name, 0.0)
    left, tied = _left(instance, instance.marked_s, loads)
    # One with the cost keeps it: its Deployment may ask for fewer already, and another pod would go in its place.
    goes = instance.costed or left == 0 or instance.marked_s >= deadline_s
    return Victim(instance.name, instance.marked_s, goes, instance.costed, left, tied)


def _left(instance: Instance, marked_s: float, loads: Loads | None) -> tuple[int | None, int]:
    """Requests that are still there, and those that cannot move. A gateway that has not seen the mark may send more.

    An engine that is not ready may not report any more; one that gets ready again is known with its mark.
    """
    if loads is None or not loads.complete or marked_s < _SETTLE_S:
        return None, 0
    load = loads.by_pod.get(instance.name)
    if load is None:
        return 0, 0
    count = max(load.requests, load.engine) if instance.ready else load.requests
    fresh = not instance.ready or 0 <= load.engine_age_s < min(marked_s, _REPORT_S)
    return (count if count or (load.draining and fresh) else None), load.tied


def _price(instance: Instance, loads: Loads | None) -> tuple[bool, int, int, int, str]:
    """What it takes to empty it: streams that cannot move last longest, then each token is computed again elsewhere."""
    load = None if loads is None else loads.by_pod.get(instance.name)
    load = EndpointLoad(name=instance.name) if load is None else load
    return instance.ready, load.tied, load.tokens, max(load.requests, load.engine), instance.name
