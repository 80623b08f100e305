"""EnginePool: the handle by which another scaler sets the number of instances of one pool of a ServingPool."""

from __future__ import annotations

from typing import ClassVar, Literal

from ballast_api.common import API_VERSION, ApiModel, NonNegativeInt, PrinterColumn, Resource, ScalePaths


class EnginePoolSpec(ApiModel):
    """What another scaler asks for."""

    replicas: NonNegativeInt
    """Instances that are wanted. A number beyond the bounds of the pool's `autoscaling` counts as the bound, and one
    beyond what `gpuBudget` leaves as what it leaves."""


class EnginePoolStatus(ApiModel):
    """What scalers read."""

    replicas: NonNegativeInt = 0
    """Instances that are there, whatever their revision; ending ones are not counted."""
    ready_replicas: NonNegativeInt = 0
    """Those of them that are ready."""
    selector: str = ""
    """Labels of their pods, as scalers take it: of an instance on several nodes the first pod."""


class EnginePool(Resource):
    """One pool of a ServingPool whose number of instances Ballast does not decide: with `autoscaling.by: External`, and
    with any `autoscaling` unless `ratio.mode` is Auto. The operator makes it, named `<serving pool>-<pool>`.
    HorizontalPodAutoscalers, KEDA and `kubectl scale` set its number by its scale subresource. The name stays the same
    through all rollouts, and instances that are to go are emptied first."""

    kind_name: ClassVar[str] = "EnginePool"
    plural: ClassVar[str] = "enginepools"
    short_names: ClassVar[tuple[str, ...]] = ("epool",)
    scale: ClassVar[ScalePaths | None] = ScalePaths(".spec.replicas", ".status.replicas", ".status.selector")
    printer_columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("WANTED", ".spec.replicas", type="integer", description="Instances that are asked for."),
        PrinterColumn("THERE", ".status.replicas", type="integer", description="Instances that are there."),
        PrinterColumn("READY", ".status.readyReplicas", type="integer", description="Those that are ready."),
        PrinterColumn("AGE", ".metadata.creationTimestamp", type="date"),
    )

    api_version: Literal["serving.ballast.dev/v1alpha1"] = API_VERSION
    """Group and version of the object."""
    kind: Literal["EnginePool"] = "EnginePool"
    """Kind of the object."""
    spec: EnginePoolSpec
    """What another scaler asks for."""
    status: EnginePoolStatus | None = None
    """What scalers read; absent until the operator's next look."""
