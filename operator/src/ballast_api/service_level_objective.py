"""ServiceLevelObjective: how fast is fast enough, for which requests."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ballast_api.common import (
    API_VERSION,
    HEADER_NAME,
    ApiModel,
    KeyedBy,
    NonEmptyStr,
    PositiveFloat,
    PrinterColumn,
    Resource,
    Rule,
    Seq,
)
from ballast_api.conditions import AcceptedStatus


class HeaderMatch(ApiModel):
    """A request header and the value that it must have."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=HEADER_NAME)]
    """Name of the header, in lower case."""
    value: Annotated[str, Field(max_length=4096)]
    """The exact value."""


class ClassMatch(ApiModel):
    """Which requests belong to the class: all conditions must hold."""

    model: NonEmptyStr | None = None
    """The request's `model`; absent matches every model."""
    headers: Annotated[Seq[HeaderMatch], Field(max_length=8), KeyedBy("name")] = ()
    """Headers that the request must carry."""


class ServiceLevelObjectiveSpec(ApiModel):
    """Thresholds in seconds, and the share of requests that must meet all of them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="ttftS",
            cel="has(self.ttftS) || has(self.tpotS) || has(self.e2eS)",
            message="an objective needs a threshold: set ttftS, tpotS or e2eS",
            holds=lambda self: not (self.ttft_s is None and self.tpot_s is None and self.e2e_s is None),
        ),
        Rule(
            field="e2eS",
            cel="!has(self.ttftS) || !has(self.e2eS) || self.ttftS <= self.e2eS",
            message="e2eS must be at least ttftS: a request cannot end before its first token",
            holds=lambda self: self.ttft_s is None or self.e2e_s is None or self.ttft_s <= self.e2e_s,
        ),
    )

    ttft_s: PositiveFloat | None = None
    """Time to first token, from arrival, in seconds."""
    tpot_s: PositiveFloat | None = None
    """Mean time per output token after the first, in seconds."""
    e2e_s: PositiveFloat | None = Field(default=None, alias="e2eS")
    """Time from arrival to the last token, in seconds."""
    attainment: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Share of requests that must meet every threshold: 0.99 is `P99 within the thresholds`."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Lower is more urgent, as in vLLM."""
    match: ClassMatch = Field(default_factory=ClassMatch)
    """The requests that this objective is about; by default all of the pool."""


class ServiceLevelObjective(Resource):
    """How fast answers must be, for which share of which requests."""

    kind_name: ClassVar[str] = "ServiceLevelObjective"
    plural: ClassVar[str] = "servicelevelobjectives"
    short_names: ClassVar[tuple[str, ...]] = ("slo",)
    printer_columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("TTFT", ".spec.ttftS", type="number", description="Time to first token, seconds."),
        PrinterColumn("TPOT", ".spec.tpotS", type="number", description="Time per output token, seconds."),
        PrinterColumn("E2E", ".spec.e2eS", type="number", description="End to end, seconds."),
        PrinterColumn("ATTAINMENT", ".spec.attainment", type="number", description="Share that must meet them."),
        PrinterColumn("AGE", ".metadata.creationTimestamp", type="date"),
    )

    api_version: Literal["serving.ballast.dev/v1alpha1"] = API_VERSION
    """Group and version."""
    kind: Literal["ServiceLevelObjective"] = "ServiceLevelObjective"
    """ServiceLevelObjective."""
    spec: ServiceLevelObjectiveSpec
    """Thresholds and target."""
    status: AcceptedStatus | None = None
    """Written by the operator."""
