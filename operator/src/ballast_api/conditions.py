"""Conditions of the custom resources: their types and reasons, one sentence each (docs/reference quotes them)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from ballast_api.common import ApiModel, DateTime, KeyedBy, NonEmptyStr, NonNegativeInt, Seq


class ConditionType(StrEnum):
    """What a condition is about; `sentence` is what True means."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    SLO_MET = "SLOMet"
    SCALING_ACTIVE = "ScalingActive"
    RESOLVED_REFS = "ResolvedRefs"
    ACCEPTED = "Accepted"
    PROFILE_ACCURATE = "ProfileAccurate"

    @property
    def sentence(self) -> str:
        """What True means."""
        return CONDITION_SENTENCES[self]


CONDITION_SENTENCES: dict[ConditionType, str] = {
    ConditionType.AVAILABLE: "Requests can be served: gateway and at least one endpoint of each needed role are ready.",
    ConditionType.PROGRESSING: "Pods start, stop or are replaced on the way to the spec.",
    ConditionType.DEGRADED: "Something keeps the pool from its spec; reason and message name it.",
    ConditionType.SLO_MET: "The share of requests that meet their ServiceLevelObjective is at or above its target.",
    ConditionType.SCALING_ACTIVE: "The traffic and the bounds let the operator decide on the number of instances.",
    ConditionType.RESOLVED_REFS: "Every object that the spec names exists and is usable.",
    ConditionType.ACCEPTED: "Ballast can use this object as it is.",
    ConditionType.PROFILE_ACCURATE: "Engines are as fast as the HardwareProfile declares, by what gateways have seen.",
}


class Reason(StrEnum):
    """Why a condition is what it is."""

    READY = "Ready"
    PREFILL_NOT_READY = "PrefillNotReady"
    DECODE_NOT_READY = "DecodeNotReady"
    GATEWAY_NOT_READY = "GatewayNotReady"
    SCALED_TO_ZERO = "ScaledToZero"
    ROLLING_OUT = "RollingOut"
    CANARY_PROGRESSING = "CanaryProgressing"
    CANARY_PAUSED = "CanaryPaused"
    SCALING = "Scaling"
    DRAINING = "Draining"
    DRAINED = "Drained"
    DRAIN_TIMED_OUT = "DrainTimedOut"
    EDIT_REVERTED = "EditReverted"
    APPLYING_SETTINGS = "ApplyingSettings"
    DELETING = "Deleting"
    COMPLETE = "Complete"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    AS_EXPECTED = "AsExpected"
    PODS_REFUSED = "PodsRefused"
    UNSCHEDULABLE = "Unschedulable"
    CRASH_LOOP = "CrashLoop"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    APPLY_FAILED = "ApplyFailed"
    NAME_CONFLICT = "NameConflict"
    RIGHTS_MISSING = "RightsMissing"
    GPU_BUDGET_EXCEEDED = "GPUBudgetExceeded"
    SETTINGS_REFUSED = "SettingsRefused"
    INVALID_SPEC = "InvalidSpec"
    REFS_RESOLVED = "RefsResolved"
    POLICY_NOT_FOUND = "PolicyNotFound"
    POLICY_INVALID = "PolicyInvalid"
    POLICY_UNSUITED = "PolicyUnsuited"
    PROFILE_NOT_FOUND = "ProfileNotFound"
    PROFILE_INVALID = "ProfileInvalid"
    SLO_NOT_FOUND = "SLONotFound"
    SLO_INVALID = "SLOInvalid"
    PARENT_NOT_FOUND = "ParentNotFound"
    ROUTE_NOT_ACCEPTED = "RouteNotAccepted"
    ROUTE_SHADOWED = "RouteShadowed"
    API_NOT_INSTALLED = "APINotInstalled"
    SLO_MET = "SLOMet"
    SLO_MISSED = "SLOMissed"
    NO_SLO = "NoSLO"
    NO_TRAFFIC = "NoTraffic"
    NOT_MEASURED = "NotMeasured"
    TOO_FEW_REQUESTS = "TooFewRequests"
    OUTPUTS_UNSEEN = "OutputsUnseen"
    STEERED = "Steered"
    ADVISED = "Advised"
    NO_LENGTHS = "NoLengths"
    SPEED_UNKNOWN = "SpeedUnknown"
    NO_OBJECTIVE = "NoObjective"
    NO_POOLS = "NoPools"
    CLAMPS_CONTRADICT = "ClampsContradict"
    BUDGET_TOO_SMALL = "BudgetTooSmall"
    OBJECTIVE_OUT_OF_REACH = "ObjectiveOutOfReach"
    GATEWAYS_SILENT = "GatewaysSilent"
    ACCEPTED = "Accepted"
    AS_DECLARED = "AsDeclared"
    LEARNED = "Learned"
    SLOWER_THAN_DECLARED = "SlowerThanDeclared"
    FASTER_THAN_DECLARED = "FasterThanDeclared"
    TOO_FEW_OBSERVATIONS = "TooFewObservations"

    @property
    def sentence(self) -> str:
        """What it means, for people."""
        return REASON_SENTENCES[self]


REASON_SENTENCES: dict[Reason, str] = {
    Reason.ROUTE_NOT_ACCEPTED: "A Gateway of spec.gateway.parentRefs does not take the HTTPRoute as it is.",
    Reason.ROUTE_SHADOWED: "An older HTTPRoute at the same Gateway matches the same requests, and gets them.",
    Reason.READY: "The gateway and at least one endpoint of each needed role are ready.",
    Reason.PREFILL_NOT_READY: "No endpoint that can prefill is ready.",
    Reason.DECODE_NOT_READY: "No endpoint that can decode is ready.",
    Reason.GATEWAY_NOT_READY: "No gateway pod is ready.",
    Reason.SCALED_TO_ZERO: "A needed role is asked to have no endpoint.",
    Reason.ROLLING_OUT: "Pods of an older revision are being replaced.",
    Reason.CANARY_PROGRESSING: "A new KV revision gets a share of the requests and is watched.",
    Reason.CANARY_PAUSED: "A new KV revision was clearly worse; the old one has all pods and requests again.",
    Reason.SCALING: "Pods are being added or removed.",
    Reason.DRAINING: "Instances that are to go are being emptied.",
    Reason.DRAINED: "An instance that is to go is empty. Of Events only.",
    Reason.DRAIN_TIMED_OUT: "An instance goes although requests are still there. Of Events only.",
    Reason.EDIT_REVERTED: "Somebody changed or deleted an object of ours, and it was set back. Of Events only.",
    Reason.APPLYING_SETTINGS: "Gateways have not all taken the newest settings yet.",
    Reason.DELETING: "The resource is being deleted.",
    Reason.COMPLETE: "All pods are of the wanted revision, in the wanted number, and ready.",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "A Deployment made no progress within its deadline.",
    Reason.AS_EXPECTED: "Nothing is wrong.",
    Reason.PODS_REFUSED: "The API server refuses pods of a Deployment: by a quota, Pod Security or a webhook.",
    Reason.UNSCHEDULABLE: "Pods find no node: too few GPUs are free, or no node has the profile's labels.",
    Reason.CRASH_LOOP: "A container keeps ending; its log holds the cause.",
    Reason.IMAGE_UNAVAILABLE: "An image cannot be pulled.",
    Reason.APPLY_FAILED: "The API server refused an object that the operator wanted to write.",
    Reason.NAME_CONFLICT: "An object of a needed name exists and belongs to another owner.",
    Reason.RIGHTS_MISSING: "The operator may not read what it decides by, so nothing is changed; the message names it.",
    Reason.GPU_BUDGET_EXCEEDED: "The pools together ask for more GPUs than spec.gpuBudget.",
    Reason.SETTINGS_REFUSED: "The gateway's settings do not go together, or a gateway refuses them; the old ones stay.",
    Reason.INVALID_SPEC: "The spec does not pass validation; nothing was changed.",
    Reason.REFS_RESOLVED: "Every object that the spec names was found and is usable.",
    Reason.POLICY_NOT_FOUND: "The SchedulingPolicy of spec.policyRef does not exist.",
    Reason.POLICY_INVALID: "The SchedulingPolicy of spec.policyRef is not usable.",
    Reason.POLICY_UNSUITED: "The SchedulingPolicy asks for what this gateway, its endpoints or engines cannot do.",
    Reason.PROFILE_NOT_FOUND: "A HardwareProfile that a pool names does not exist.",
    Reason.PROFILE_INVALID: "A HardwareProfile that a pool names is not usable.",
    Reason.SLO_NOT_FOUND: "A ServiceLevelObjective of spec.sloRef or spec.sloRefs does not exist.",
    Reason.SLO_INVALID: "A ServiceLevelObjective of spec.sloRef or spec.sloRefs is not usable.",
    Reason.PARENT_NOT_FOUND: "A Gateway of spec.gateway.parentRefs does not exist.",
    Reason.API_NOT_INSTALLED: "The spec needs a Kubernetes API that the cluster does not have; its CRDs are missing.",
    Reason.SLO_MET: "The interval of each class's attainment was at or above its target; nothing speaks against it.",
    Reason.SLO_MISSED: "The interval of a class's attainment was below its target; nothing speaks against it.",
    Reason.NO_SLO: "The spec names no ServiceLevelObjective.",
    Reason.NO_TRAFFIC: "No request arrived, or none ended, in the window that is measured.",
    Reason.NOT_MEASURED: "No gateway has reported counts yet.",
    Reason.TOO_FEW_REQUESTS: "The target is within the interval of the attainment: too few requests to say.",
    Reason.OUTPUTS_UNSEEN: "Of most requests no gateway sees the output: pods behind a picker need their agent.",
    Reason.STEERED: "The operator sets the number of instances by the traffic.",
    Reason.ADVISED: "The operator says how many instances the traffic needs, and changes nothing.",
    Reason.NO_LENGTHS: "Requests arrived, but none told how long its prompt and output are; nothing is scaled.",
    Reason.SPEED_UNKNOWN: "A HardwareProfile declares no speed, and too little was learned yet; nothing is scaled.",
    Reason.NO_OBJECTIVE: "No ServiceLevelObjective has a threshold to scale for; nothing is scaled.",
    Reason.NO_POOLS: "No pool may have an instance for a stage; nothing is scaled.",
    Reason.CLAMPS_CONTRADICT: "No numbers of instances are within all bounds together; nothing is scaled.",
    Reason.BUDGET_TOO_SMALL: "The least that the bounds ask for exceeds spec.gpuBudget; nothing is scaled.",
    Reason.OBJECTIVE_OUT_OF_REACH: "A mean request misses its objective on an idle instance; nothing is scaled.",
    Reason.GATEWAYS_SILENT: "A gateway does not say what its traffic is; nothing is scaled.",
    Reason.ACCEPTED: "The object is valid and known to the operator.",
    Reason.AS_DECLARED: "Learned times of decode steps and prefills are near the declared ones.",
    Reason.LEARNED: "The profile declares no speed; scaling goes by what was learned, which status.learned shows.",
    Reason.SLOWER_THAN_DECLARED: "Engines are slower by more than a quarter; scaling goes by what was learned.",
    Reason.FASTER_THAN_DECLARED: "Engines are faster by more than a quarter; scaling goes by what was learned.",
    Reason.TOO_FEW_OBSERVATIONS: "Gateways have seen too few decode steps and prefills to judge the profile.",
}

ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(ApiModel):
    """One finding about the resource, in the form that Kubernetes tools expect (metav1.Condition)."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What the condition is about, such as `Available`."""
    status: ConditionStatus
    """Whether it holds: True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, as one CamelCase word; the reference lists them."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, for people, with the objects, fields and numbers concerned."""
    last_transition_time: DateTime
    """When `status` last changed."""
    observed_generation: NonNegativeInt | None = None
    """The `metadata.generation` of the spec that the condition is about."""


Conditions: TypeAlias = Annotated[Seq[Condition], KeyedBy("type")]


MAX_USED_BY: Final = 64
"""Users that a status names at most."""


class AcceptedStatus(ApiModel):
    """Status of the resources that others refer to."""

    observed_generation: NonNegativeInt | None = None
    """The `metadata.generation` of the spec that this status is about."""
    conditions: Conditions = ()
    """`Accepted` is False when Ballast cannot use the object; its message names field and fix."""
    used_by: Annotated[Seq[NonEmptyStr], Field(max_length=MAX_USED_BY)] = ()
    """ServingPools that name the object, as `NAMESPACE/NAME`: the first 64 of them. While there are any, the API server
    refuses to delete it (the chart's `admission`)."""
