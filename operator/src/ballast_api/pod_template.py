"""A pod template to merge over a generated one: typed where Ballast reads it, free elsewhere."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from ballast_api.common import DNS_LABEL, ApiModel, KeyedBy, Seq, StringMap


class OpenModel(ApiModel):
    """Keeps fields that it does not know; Kubernetes checks them when the pods are made."""

    model_config = ConfigDict(extra="allow")


class TemplateMetadata(OpenModel):
    """Labels and annotations to add to the pods."""

    labels: StringMap = Field(default_factory=dict)
    """Labels to add. Labels that Ballast sets win."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations to add. Annotations that Ballast sets win."""


class ContainerOverlay(OpenModel):
    """A container to merge (same name) or to add (another name), as in a pod's spec."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
    """Name of the container. A generated container of this name is merged; any other is added."""


class TemplateSpec(OpenModel):
    """Fields of a pod's spec. Lists with a merge key are merged by it; other values replace the generated ones."""

    containers: Annotated[Seq[ContainerOverlay], Field(max_length=16), KeyedBy("name")] = ()
    """Containers to merge or to add, by name."""


class PodTemplateOverlay(OpenModel):
    """What users add to or change in the pods that Ballast generates, in the shape of a PodTemplateSpec."""

    metadata: TemplateMetadata = Field(default_factory=TemplateMetadata)
    """Labels and annotations to add to the pods."""
    spec: TemplateSpec = Field(default_factory=TemplateSpec)
    """Fields of the pods' spec to merge over the generated ones."""
