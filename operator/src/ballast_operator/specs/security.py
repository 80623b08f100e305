"""Security contexts that pass Pod Security `restricted`."""

from __future__ import annotations

from typing import Final

from ballast_operator.kinds import Manifest

UNPRIVILEGED_ID: Final = 10001
"""User and group of our containers: any number works, root does not."""


def pod_security() -> Manifest:
    """The pod's part; `fsGroup` makes volumes writable for our user."""
    return {
        "runAsNonRoot": True,
        "runAsUser": UNPRIVILEGED_ID,
        "runAsGroup": UNPRIVILEGED_ID,
        "fsGroup": UNPRIVILEGED_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(*, read_only: bool) -> Manifest:
    """The container's part. Engines write caches below their home; the gateway writes nothing."""
    context: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {**context, "readOnlyRootFilesystem": True} if read_only else context
