"""Lists the pods of many ServingPools at once, with one request to the API server for each namespace that is served."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Protocol

from ballast_api import names
from ballast_operator.gateways.board import Name
from ballast_operator.kinds import POD, Kind, Manifest

OURS: Final = f"{names.APP_MANAGED_BY}={names.MANAGER}"
"""Selects all pods of ServingPools."""
GATEWAYS: Final = f"{OURS},{names.APP_COMPONENT}=gateway"
"""Selects their gateways."""


class Lists(Protocol):
    """What is needed of the API server."""

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """Objects of one kind; of all namespaces without one. Raises `ApiFailure`."""
        ...


def listed(api: Lists, followed: Collection[Name], namespaces: tuple[str, ...], labels: str) -> Iterator[Manifest]:
    """Pods of these ServingPools, and of others perhaps. `namespaces`: those that are served; empty: all. Raises
    `ApiFailure`."""
    served: Iterable[str | None] = namespaces or (None,)
    if len(own := {namespace for namespace, _ in followed}) == 1:
        served = own
    for namespace in served:
        yield from api.list(POD, namespace, labels=labels)
