"""What gateways say of their settings, by annotations of the Lease that they hold together.

Level-based, like all that the operator reads: each gateway says of the newest text that it has seen which one it is,
and why it refuses it, if it does. Nobody calls anybody, so no port and no right is opened for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ballast_api import names
from ballast_api.settings_changes import text_hash
from ballast_operator.kinds import CONFIG_MAP, LEASE, Manifest


@dataclass(frozen=True, slots=True)
class Report:
    """Of one gateway pod."""

    hash: str
    """Of the newest text that it has seen."""
    problem: str = ""
    """Why it refuses that text; empty if it is in force."""


def reports(children: Iterable[Manifest]) -> Mapping[str, Report]:
    """By name of the pod. Pods that are gone may be among them."""
    leases = [child for child in children if child["kind"] == LEASE.kind]
    found = {}
    for lease in leases:
        for key, value in (lease["metadata"].get("annotations") or {}).items():
            pod = key.removeprefix(names.ANNOTATION_SETTINGS)
            if pod != key:
                seen, _, problem = value.partition(" ")
                found[pod] = Report(seen, problem)
    return found


def settings_hash(objects: Iterable[Manifest]) -> str | None:
    """Of the gateway's settings among these objects; None without them."""
    for item in objects:
        if item["kind"] == CONFIG_MAP.kind:
            text = (item.get("data") or {}).get(names.GATEWAY_CONFIG_FILE)
            if text is not None:
                return text_hash(text.encode())
    return None


def differ(children: Iterable[Manifest]) -> bool:
    """Whether any report is of another text than that of the settings among these objects, or refuses it."""
    children = tuple(children)
    newest = settings_hash(children)
    return any(each.hash != newest or each.problem for each in reports(children).values())
