"""The pod API's token in a pod: a mounted Secret, so that the kubelet brings a new token without a restart."""

from __future__ import annotations

from typing import Final

from ballast_api import names
from ballast_operator.kinds import Manifest

TOKEN_FILE: Final = f"{names.TOKEN_DIR}/{names.TOKEN_KEY}"
"""Path in a container with the mount."""
_VOLUME: Final = "token"
_READABLE: Final = 0o440
"""By the pod's `fsGroup`, nobody else."""


def token_volume(serving_pool: str) -> Manifest:
    """The Secret's tokens, and no other key of it."""
    items = [{"key": names.TOKEN_KEY, "path": names.TOKEN_KEY}]
    secret = {"secretName": names.gateway_token_name(serving_pool), "defaultMode": _READABLE, "items": items}
    return {"name": _VOLUME, "secret": secret}


def token_mount() -> Manifest:
    """The whole folder: a single file (`subPath`) would never change."""
    return {"name": _VOLUME, "mountPath": names.TOKEN_DIR, "readOnly": True}
