"""SchedulingPolicy: which policies decide what becomes of requests, with which parameters.

The core is the authority: types and parameters are those of its dataclasses, in the schema and here, and
`ballast_core.policies.composing` decides which policies go together.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ballast_api.common import API_VERSION, ApiModel, NonEmptyStr, PrinterColumn, Resource, Rule, raise_at
from ballast_api.conditions import AcceptedStatus
from ballast_api.policy_parameters import manifest_words, parameters_schema
from ballast_core.policies.composing import NOTHING_WAITS, problems
from ballast_core.policies.registry import (
    ADMISSION,
    PARTITION,
    PARTS,
    PLACEMENT,
    QUEUE_ORDER,
    RESCHEDULING,
    Kind,
    PolicyError,
    build,
)
from ballast_core.policies.suite import Suite


class PolicySpec(ApiModel):
    """One policy: its type, and its parameters where it has some."""

    kind_of_policy: ClassVar[Kind[Any]]

    type: NonEmptyStr
    """Name of the policy; the policy reference lists them."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters of that policy, in camelCase; the policy reference lists them. Those that are left out take the
    policy's defaults."""

    @model_validator(mode="after")
    def _check_against_the_core(self) -> Self:
        try:
            self.build()
        except PolicyError as error:
            message = manifest_words(str(error))
            if self.type == SIMULATED_ONLY and error.field == "type":
                message = "oracle must know how long every output will be: only `ballast simulate --policy` can do that"
            raise_at(type(self).__name__, [(error.field, "policy", message, None)])
        return self

    def build(self) -> Any:
        """The core's policy."""
        return build(self.kind_of_policy, self.type, self.parameters, spell=to_camel)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = super().__get_pydantic_json_schema__(schema, handler)
        types = cls.kind_of_policy.types
        target = handler.resolve_ref_schema(json_schema)
        target["properties"]["type"]["enum"] = sorted(types)
        target["properties"]["parameters"] |= parameters_schema(types)
        return json_schema


SIMULATED_ONLY = "oracle"
"""A placement that needs the length of every output: no manifest may name it, because no gateway can run it."""


class PlacementSpec(PolicySpec):
    """One placement policy: its type, and its parameters where it has some."""

    kind_of_policy = PLACEMENT

    type: NonEmptyStr
    """Name of the policy, such as `least-requests`; the policy reference lists them."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters of that policy, in camelCase; the policy reference lists them. Those that are left out take the
    policy's defaults. Compositions take policies here."""


class QueueOrderSpec(PolicySpec):
    """One queue order: its type, and its parameters where it has some."""

    kind_of_policy = QUEUE_ORDER


class AdmissionSpec(PolicySpec):
    """One admission policy: its type, and its parameters where it has some."""

    kind_of_policy = ADMISSION


class PartitionSpec(PolicySpec):
    """One partition policy: its type, and its parameters where it has some."""

    kind_of_policy = PARTITION


class ReschedulingSpec(PolicySpec):
    """One rescheduling policy: its type, and its parameters where it has some."""

    kind_of_policy = RESCHEDULING


def _composition_rule(field: str, cel: str, reason: str) -> Rule:
    """`reason`: the core's own sentence, by which pydantic's half of the rule finds the problem again."""

    def holds(spec: SchedulingPolicySpec) -> bool:
        return all(problem.reason != reason for problem in problems(spec.build()))

    return Rule(field=field, cel=cel, message=manifest_words(reason), holds=holds)


class SchedulingPolicySpec(ApiModel):
    """Which policy takes which decision. Policies and parameters that this release does not know are refused."""

    prefill: PlacementSpec = Field(default_factory=lambda: PlacementSpec(type="least-uncached-tokens"))
    """Chooses the endpoint that prefills a request. Left out, least-uncached-tokens does."""
    decode: PlacementSpec = Field(default_factory=lambda: PlacementSpec(type="ballast"))
    """Chooses the endpoint that decodes a request. Left out, ballast does."""
    queue: QueueOrderSpec | None = None
    """Orders the requests that wait, in the gateway or, as priorities, in the engines. Left out, first come, first
    served (fcfs)."""
    admission: AdmissionSpec = Field(default_factory=lambda: AdmissionSpec(type="expected-ttft"))
    """Limits what an endpoint gets at a time; other requests wait in the gateway or are shed. Left out, expected-ttft
    does; open sets no limit."""
    partition: PartitionSpec | None = None
    """Cuts requests into parts for several endpoints that both prefill and decode. Left out, requests stay whole."""
    rescheduling: ReschedulingSpec | None = None
    """Moves running decodes to other endpoints. Left out, they stay where they are."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _composition_rule(
            "queue",
            "!has(self.queue) || self.queue.type == 'fcfs' || !has(self.admission) || self.admission.type != 'open'"
            " || (has(self.queue.parameters) && has(self.queue.parameters.enginePriority)"
            " && self.queue.parameters.enginePriority)",
            NOTHING_WAITS,
        ),
    )

    def build(self) -> Suite:
        """The core's policies."""
        specs: dict[str, PolicySpec | None] = {part: getattr(self, part) for part in PARTS}
        made: dict[str, Any] = {part: None if spec is None else spec.build() for part, spec in specs.items()}
        return Suite(**made)

    @model_validator(mode="before")
    @classmethod
    def _say_what_is_to_come(cls, value: object) -> object:
        if isinstance(value, dict) and (early := [key for key in PLANNED_PARTS if key in value]):
            raise_at(
                "SchedulingPolicySpec",
                [
                    (key, "unsupported", f"this release has no {PLANNED_PARTS[key]}; remove the field", None)
                    for key in early
                ],
            )
        return value


PLANNED_PARTS = {"scaling": "scaling policies"}
"""Parts of a policy that are planned and not yet implemented: refused with a reason, as the server refuses them."""


class SchedulingPolicy(Resource):
    """How the gateway places, orders, admits, cuts and moves requests. A ServingPool without one places prefills by
    least-uncached-tokens and decodes by ballast."""

    kind_name: ClassVar[str] = "SchedulingPolicy"
    plural: ClassVar[str] = "schedulingpolicies"
    short_names: ClassVar[tuple[str, ...]] = ("schedpol",)
    printer_columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("PREFILL", ".spec.prefill.type", description="Places prefills."),
        PrinterColumn("DECODE", ".spec.decode.type", description="Places decodes."),
        PrinterColumn("QUEUE", ".spec.queue.type", description="Orders the requests that wait.", priority=1),
        PrinterColumn("ADMISSION", ".spec.admission.type", description="Limits the work of an endpoint.", priority=1),
        PrinterColumn("PARTITION", ".spec.partition.type", description="Cuts requests.", priority=1),
        PrinterColumn("RESCHEDULING", ".spec.rescheduling.type", description="Moves decodes.", priority=1),
        PrinterColumn("AGE", ".metadata.creationTimestamp", type="date"),
    )

    api_version: Literal["serving.ballast.dev/v1alpha1"] = API_VERSION
    """Group and version of the object."""
    kind: Literal["SchedulingPolicy"] = "SchedulingPolicy"
    """Kind of the object."""
    spec: SchedulingPolicySpec = Field(default_factory=SchedulingPolicySpec)
    """The policy of each kind of decision. Gateways that use it take a change as they run."""
    status: AcceptedStatus | None = None
    """Whether the operator accepts the policy; absent until its first look."""
