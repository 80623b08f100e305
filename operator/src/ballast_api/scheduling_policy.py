"""SchedulingPolicy: which policies place prefills and decodes, with which parameters.

The core's registry is the authority: types and parameters are those of its dataclasses, in the schema and here.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ballast_api.common import API_VERSION, ApiModel, NonEmptyStr, PrinterColumn, Resource, raise_at
from ballast_api.conditions import AcceptedStatus
from ballast_api.policy_parameters import manifest_words, parameters_schema
from ballast_core.policies.base import Placement
from ballast_core.policies.registry import ALL_PLACEMENTS, PolicyError, build_placement
from ballast_core.policies.suite import Suite


class PlacementSpec(ApiModel):
    """One placement policy: its type, and its parameters where it has some."""

    type: NonEmptyStr
    """Type name of the policy, such as `least-requests`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters of that type, in camelCase; the policy reference lists them. Compositions take policies here."""

    @model_validator(mode="after")
    def _check_against_the_core(self) -> Self:
        try:
            self.build()
        except PolicyError as error:
            raise_at("PlacementSpec", [(error.field, "policy", manifest_words(str(error)), None)])
        return self

    def build(self) -> Placement:
        """The core's policy."""
        return build_placement(self.type, self.parameters, spell=to_camel)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = super().__get_pydantic_json_schema__(schema, handler)
        target = handler.resolve_ref_schema(json_schema)
        target["properties"]["type"]["enum"] = sorted(ALL_PLACEMENTS)
        target["properties"]["parameters"] |= parameters_schema(ALL_PLACEMENTS)
        return json_schema


class SchedulingPolicySpec(ApiModel):
    """Which policy decides what. Only what this release implements is accepted."""

    prefill: PlacementSpec = Field(default_factory=lambda: PlacementSpec(type="least-uncached-tokens"))
    """Chooses the endpoint that prefills a request."""
    decode: PlacementSpec = Field(default_factory=lambda: PlacementSpec(type="ballast"))
    """Chooses the endpoint that decodes it."""

    def build(self) -> Suite:
        """The core's policies."""
        return Suite(prefill=self.prefill.build(), decode=self.decode.build())

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


PLANNED_PARTS = {
    "queue": "queue-order policies",
    "admission": "admission policies",
    "partition": "partition policies",
    "rescheduling": "rescheduling policies",
    "scaling": "scaling policies",
}
"""Parts of a policy that are planned and not yet implemented: refused with a reason, as the server refuses them."""


class SchedulingPolicy(Resource):
    """How requests are placed. Without one: least-uncached-tokens for prefill, ballast for decode."""

    kind_name: ClassVar[str] = "SchedulingPolicy"
    plural: ClassVar[str] = "schedulingpolicies"
    short_names: ClassVar[tuple[str, ...]] = ("schedpol",)
    printer_columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("PREFILL", ".spec.prefill.type", description="Places prefills."),
        PrinterColumn("DECODE", ".spec.decode.type", description="Places decodes."),
        PrinterColumn("AGE", ".metadata.creationTimestamp", type="date"),
    )

    api_version: Literal["serving.ballast.dev/v1alpha1"] = API_VERSION
    """Group and version."""
    kind: Literal["SchedulingPolicy"] = "SchedulingPolicy"
    """SchedulingPolicy."""
    spec: SchedulingPolicySpec = Field(default_factory=SchedulingPolicySpec)
    """The policies."""
    status: AcceptedStatus | None = None
    """Written by the operator."""
