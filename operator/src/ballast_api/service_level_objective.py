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
from ballast_core.attainment import Objective


class HeaderMatch(ApiModel):
    """A request header and the value that it must have."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=HEADER_NAME)]
    """Name of the header, in lower case."""
    value: Annotated[str, Field(max_length=4096)]
    """Exact value of the header."""


class ClassMatch(ApiModel):
    """Conditions that a request of the class meets, all of them."""

    model: NonEmptyStr | None = None
    """Value of `model` in the request. Left out, every model matches."""
    headers: Annotated[Seq[HeaderMatch], Field(max_length=8), KeyedBy("name")] = ()
    """Headers that the request must carry; of a header that comes twice the first value counts. Left out, none is
    required."""


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
    """Seconds from arrival to the first token, at most. Left out, TTFT has no threshold. Admission `expected-ttft`
    sheds a request of the class that cannot keep it, where it is shorter than the policy's `maxTtftS`; the queue order
    `edf` goes by it."""
    tpot_s: PositiveFloat | None = None
    """Mean seconds of a request for each output token after the first, at most. Left out, TPOT has no
    threshold."""
    e2e_s: PositiveFloat | None = Field(default=None, alias="e2eS")
    """Seconds from arrival to the last token, at most. Left out, E2E has no threshold."""
    attainment: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Share of requests that must meet every threshold, above 0 and up to 1: 0.99 asks for 99 of 100."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Urgency of the class, lower first, as in vLLM: of its requests that say none themselves (`trust.priorities`)."""
    match: ClassMatch = Field(default_factory=ClassMatch)
    """Requests that the objective is about, its class. Of several objectives of a ServingPool the first one counts that
    matches. Left out, all requests of the pool."""

    def to_core(self, name: str) -> Objective:
        """The core's value."""
        return Objective(
            name=name,
            ttft_s=self.ttft_s,
            tpot_s=self.tpot_s,
            e2e_s=self.e2e_s,
            target=self.attainment,
            priority=self.priority,
        )


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
    """Group and version of the object."""
    kind: Literal["ServiceLevelObjective"] = "ServiceLevelObjective"
    """Kind of the object."""
    spec: ServiceLevelObjectiveSpec
    """Thresholds in seconds, and the share of requests that must meet all of them. Gateways measure it, for each
    ServingPool that names the objective."""
    status: AcceptedStatus | None = None
    """Whether the operator accepts the objective; absent until its first look."""
