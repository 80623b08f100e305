"""HTTPRoutes that match alike at one Gateway: it gives the requests to the oldest, without a word. Pure.

Two matches are alike where the Gateway API has no rule but age to choose between them: same listener, same host, same
path, method, headers and query. One that says more than another is meant to win, and is none of ours to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ballast_operator.kinds import GATEWAY, Manifest

_Claim: TypeAlias = tuple[str, str]
"""Host, empty for all, and one match of requests, as text that is the same for matches alike."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Requests of one route that go to another one."""

    route: str
    """The other: `NAMESPACE/NAME`."""
    parent: str
    """The Gateway: `NAMESPACE/NAME`, and its listener where one is named."""
    requests: tuple[str, ...]
    """What is lost to it, for people."""
    all_lost: bool = False
    """Whether that is all that our route asks of this Gateway."""


def overlaps(route: Manifest, others: Sequence[Manifest]) -> tuple[Overlap, ...]:
    """What `route` loses to each of `others`, in order of age. A route without a creation time is still to be made."""
    older = sorted((each for each in others if _age(each) < _age(route)), key=_age)
    found: list[Overlap] = []
    for parent in _parents(route):
        ours = dict(_claims(route))
        left, here = set(ours), []
        for other in older:
            if not any(_meets(parent, each, other) for each in _parents(other)):
                continue
            lost = sorted(left & dict(_claims(other)).keys())
            left -= set(lost)
            if lost:
                words = tuple(dict.fromkeys(ours[claim] for claim in lost))
                here.append(Overlap(_name(other), _parent_name(parent), words))
        found += [replace(each, all_lost=not left) for each in here]
    return tuple(found)


def gets_nothing(route: Manifest, found: Sequence[Overlap]) -> bool:
    """Whether no Gateway gives it any request, by the overlaps `found`."""
    return {each.parent for each in found if each.all_lost} >= {_parent_name(each) for each in _parents(route)}


def _age(route: Manifest) -> tuple[bool, str, str]:
    """The Gateway API's order: the older first, then by namespace and name."""
    created = str(route["metadata"].get("creationTimestamp", ""))
    return not created, created, _name(route)


def _parent_name(parent: dict[str, Any]) -> str:
    section = f" listener {parent['sectionName']}" if parent.get("sectionName") else ""
    return f"{parent['namespace']}/{parent['name']}{section}"


def _name(route: Manifest) -> str:
    return f"{route['metadata']['namespace']}/{route['metadata']['name']}"


def _parents(route: Manifest) -> Iterator[dict[str, Any]]:
    """Its parentRefs, with what they leave out."""
    for each in (route.get("spec") or {}).get("parentRefs") or ():
        yield {"group": GATEWAY.group, "kind": GATEWAY.kind, "namespace": route["metadata"]["namespace"], **each}


def _meets(ours: dict[str, Any], theirs: dict[str, Any], other: Manifest) -> bool:
    """Whether both are of one listener, as far as they say, and the Gateway takes the other route there."""
    if any(ours[key] != theirs[key] for key in ("group", "kind", "namespace", "name")):
        return False
    for key in ("sectionName", "port"):
        if ours.get(key) is not None and theirs.get(key) is not None and ours[key] != theirs[key]:
            return False
    return not _refused(theirs, other)


def _refused(parent: dict[str, Any], route: Manifest) -> bool:
    for status in (route.get("status") or {}).get("parents") or ():
        reference = {"namespace": route["metadata"]["namespace"], **(status.get("parentRef") or {})}
        same = all(reference.get(key) == parent.get(key) for key in ("namespace", "name", "sectionName"))
        if same and any(
            each.get("type") == "Accepted" and each.get("status") == "False" for each in status.get("conditions") or ()
        ):
            return True
    return False


def _claims(route: Manifest) -> Iterator[tuple[_Claim, str]]:
    """What a route asks for, each with words for it."""
    spec = route.get("spec") or {}
    hosts = [str(each).lower() for each in spec.get("hostnames") or ()] or [""]
    for rule in spec.get("rules") or ():
        matches: Sequence[dict[str, Any]] = rule.get("matches") or ({},)
        for match in matches:
            for host in hosts:
                yield (host, repr(_canonical(match))), _words(host, match)


def _canonical(match: dict[str, Any]) -> tuple[object, ...]:
    path = match.get("path") or {}
    value = str(path.get("value", "/"))
    kind = str(path.get("type", "PathPrefix"))
    if kind == "PathPrefix":
        value = value.rstrip("/")
    return kind, value, match.get("method", ""), _named(match, "headers"), _named(match, "queryParams")


def _named(match: dict[str, Any], key: str) -> tuple[tuple[str, str, str], ...]:
    lower = key == "headers"
    found = match.get(key) or ()
    names = [str(each["name"]).lower() if lower else str(each["name"]) for each in found]
    return tuple(
        sorted(
            (name, str(each.get("type", "Exact")), str(each.get("value", "")))
            for name, each in zip(names, found, strict=True)
        )
    )


def _words(host: str, match: dict[str, Any]) -> str:
    path = (match.get("path") or {}).get("value", "/")
    named = [f"{each['name']}: {each.get('value', '')}" for each in match.get("headers") or ()]
    return " ".join([f"{host or 'any host'} {path}", *([f"with {', '.join(named)}"] if named else [])])
