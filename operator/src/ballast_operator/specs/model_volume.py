"""Where the model's weights come from: a volume in the engine's pods, as the spec says."""

from __future__ import annotations

from typing import Final

from ballast_api.serving_pool import ModelSpec
from ballast_operator.kinds import Manifest

_VOLUME: Final = "model"


def model_volumes(model: ModelSpec) -> list[Manifest]:
    """The volume of a pod; none where engines download into the container."""
    source = model.volume
    if source is None:
        return []
    if source.image is not None:
        image = {"reference": source.image.reference}
        if source.image.pull_policy is not None:
            image["pullPolicy"] = source.image.pull_policy
        return [{"name": _VOLUME, "image": image}]
    claim = source.claim or source.cache
    return [{"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}]


def model_mounts(model: ModelSpec) -> list[Manifest]:
    """Where the engine has it; only a cache is written."""
    source = model.volume
    if source is None:
        return []
    mount: Manifest = {"name": _VOLUME, "mountPath": source.mount_path}
    return [mount if source.cache is not None else {**mount, "readOnly": True}]


def model_environment(model: ModelSpec) -> list[Manifest]:
    """A cache is where Hugging Face's library looks before it downloads."""
    source = model.volume
    if source is None or source.cache is None:
        return []
    return [{"name": "HF_HOME", "value": source.mount_path}]
