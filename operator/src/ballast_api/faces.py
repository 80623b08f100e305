"""The faces of a gateway: how requests reach it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, WithJsonSchema


class Face(StrEnum):
    """Which of its two faces a gateway serves. The values are those of `face` in settings and ServingPools."""

    PROXY = "Proxy"
    PICKER = "Picker"
    BOTH = "Both"

    @property
    def serves_proxy(self) -> bool:
        """Whether it takes OpenAI requests itself."""
        return self is not Face.PICKER

    @property
    def serves_picker(self) -> bool:
        """Whether it answers an Envoy's ext_proc calls."""
        return self is not Face.PROXY


_SCHEMA = {"enum": [face.value for face in Face], "type": "string"}
FaceField = Annotated[Face, Field(strict=False), WithJsonSchema(_SCHEMA)]
"""A field of a model that takes the value's text."""
