"""The image of Ballast's own containers beside the operator: gateways and agents run the same one."""

from __future__ import annotations

from typing import Final

from ballast_api.serving_pool import GatewaySpec
from ballast_operator.kinds import Manifest
from ballast_operator.settings import GatewayDefaults

STARTS_WITHIN_S: Final = 180
"""Start-up of such a container: a second, or a minute where a node's processors are taken."""


def pull_secrets(defaults: GatewayDefaults) -> Manifest:
    """Fields of a pod with such a container: the Secrets for its registry, where there are some."""
    secrets = [{"name": name} for name in defaults.image_pull_secrets]
    return {"imagePullSecrets": secrets} if secrets else {}


def ballast_image(gateway: GatewaySpec, defaults: GatewayDefaults) -> Manifest:
    """Fields of a container: the image, and its pull policy where one is set."""
    policy = gateway.image_pull_policy or (defaults.image_pull_policy if gateway.image is None else None)
    image = {"image": gateway.image or defaults.image}
    return {**image, "imagePullPolicy": policy} if policy else image
