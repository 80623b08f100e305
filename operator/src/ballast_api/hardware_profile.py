"""HardwareProfile: what one engine on one kind of hardware can do (cluster-scoped)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from ballast_api.common import (
    API_VERSION,
    ApiModel,
    LabelMap,
    NonEmptyStr,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrinterColumn,
    Resource,
    Rule,
    Seq,
)
from ballast_api.conditions import AcceptedStatus
from ballast_core import profiles as core

MAX_LEARNED: Final = 16
"""ServingPools of which a status tells what was learned."""

SPEEDS: Final = ("overhead_ms", "a_ms", "d_ms_per_token", "k_ms_per_kv_token", "s_ms_per_pair", "b_ms_per_seq")
"""Coefficients of a step's time: all are declared, or none."""

Description = Annotated[str, Field(max_length=1024)]


class EngineProfile(ApiModel):
    """Speed and capacity of one engine: a model on a kind and number of GPUs.

    Milliseconds of one engine step: `overheadMs + (aMs^4 + (dMsPerToken T)^4)^(1/4) + kMsPerKvToken (sum of decode
    contexts) + sMsPerPair (sum over prefill chunks of n (C + n/2)) + bMsPerSeq (number of decodes)`. T are all tokens
    computed in the step; a chunk computes n tokens of a request that has C computed already.

    Where these six coefficients are left out, all of them, gateways learn them from live traffic: they begin with a
    guess, and nothing is scaled until enough is known.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="kvTokens",
            cel="self.kvTokens >= self.blockSize",
            message="kvTokens must be at least blockSize: the KV cache has to hold one block",
            holds=lambda self: self.kv_tokens >= self.block_size,
        ),
        Rule(
            field="aMs",
            cel=f"[{', '.join(f'has(self.{to_camel(name)})' for name in SPEEDS)}].filter(each, each).size() in [0, 6]",
            message="set all of the six coefficients of a step's time, or none: gateways learn them then",
            holds=lambda self: sum(getattr(self, field) is not None for field in SPEEDS) in {0, len(SPEEDS)},
        ),
        Rule(
            field="aMs",
            cel="!has(self.overheadMs) || !has(self.aMs) || self.overheadMs + self.aMs > 0.0",
            message="aMs and overheadMs cannot both be 0: an engine step takes time",
            holds=lambda self: self.overhead_ms is None or self.a_ms is None or self.overhead_ms + self.a_ms > 0,
        ),
    )

    hardware: Description = ""
    """What the hardware is, for people, such as `2 x A100 80 GB, tensor parallel`. It changes nothing else."""
    gpus: PositiveInt = 1
    """GPUs of one engine, requested from Kubernetes as `resourceName`. A pool may override it by
    `tensorParallelSize`."""
    overhead_ms: NonNegativeFloat | None = None
    """Fixed milliseconds of every step, for launches and work on the host. Left out, learned."""
    a_ms: NonNegativeFloat | None = None
    """Milliseconds to read the weights once: the floor of a step that is bound by memory. Left out, learned."""
    d_ms_per_token: NonNegativeFloat | None = None
    """Milliseconds of arithmetic for each token computed in a step: the slope of a step that is bound by compute. Left
    out, learned."""
    k_ms_per_kv_token: NonNegativeFloat | None = None
    """Milliseconds for each token of context that decodes read from the KV cache in a step. Left out, learned."""
    s_ms_per_pair: NonNegativeFloat | None = None
    """Milliseconds for each (new token, earlier token) pair of prefill attention. Left out, learned."""
    b_ms_per_seq: NonNegativeFloat | None = None
    """Milliseconds for each decoding sequence of a step, for sampling and work on the host. Left out, learned."""
    kv_tokens: PositiveInt
    """Tokens that the KV cache of one engine holds."""
    kv_bytes_per_token: PositiveInt
    """Bytes of KV cache for one token, which a hand-off moves."""
    block_size: PositiveInt = 16
    """Tokens of one KV block. Engines get it as vLLM's --block-size, so a change replaces the pods of all pools,
    prefill and decode together."""
    max_num_batched_tokens: PositiveInt = 8192
    """Tokens that one step computes at most. Engines get it as vLLM's --max-num-batched-tokens, so a change replaces
    the pods that use the profile."""
    max_num_seqs: PositiveInt = 256
    """Sequences that run at once, at most. Engines get it as vLLM's --max-num-seqs, so a change replaces the pods that
    use the profile."""
    link_gbps: PositiveFloat = 200.0
    """Bandwidth of the link that KV travels on, in Gbit/s."""
    link_setup_s: NonNegativeFloat = 0.005
    """Seconds before the first byte of a KV transfer flows."""
    derivation: Description = ""
    """Where the numbers come from, for people. It changes nothing else."""

    @property
    def speed_known(self) -> bool:
        """Whether the coefficients of a step's time are declared."""
        return self.a_ms is not None

    def to_core(self, name: str) -> core.HardwareProfile:
        """The value that the core computes with: a guess where no speed is declared."""
        numbers = {field: getattr(self, field) for field in EngineProfile.model_fields}
        if not self.speed_known:
            numbers |= {field: getattr(core.UNINFORMED_PROFILE, field) for field in SPEEDS}
        return core.HardwareProfile(name=name, speed_known=self.speed_known, **numbers)

    def to_simulate(self, name: str) -> core.HardwareProfile:
        """The same for an engine that is played by these numbers. Raises ValueError where no speed is declared."""
        if not self.speed_known:
            raise ValueError(
                f"HardwareProfile {name} leaves the speed of its engines to be learned from live traffic, and what is "
                f"simulated goes by it: set {', '.join(map(to_camel, SPEEDS))}, or name another profile"
            )
        return self.to_core(name)

    @classmethod
    def from_core(cls, profile: core.HardwareProfile) -> EngineProfile:
        """The inverse of `to_core`."""
        unknown = () if profile.speed_known else SPEEDS
        return cls(**{field: getattr(profile, field) for field in EngineProfile.model_fields if field not in unknown})


class HardwareProfileSpec(EngineProfile):
    """An engine's speed and capacity, and where in the cluster such engines run."""

    cost_per_hour: NonNegativeFloat | None = None
    """Cost of one engine for an hour, in any one currency. Scaling takes the cheapest pool for what is needed; left out
    in one profile of a ServingPool, GPUs are compared instead."""
    node_selector: LabelMap = Field(default_factory=dict)
    """Labels of the nodes that have this hardware, set as the pods' nodeSelector. Left out, pods may run on any node
    that has the GPUs."""
    resource_name: Annotated[str, Field(min_length=1, max_length=253)] = "nvidia.com/gpu"
    """Extended resource that the GPUs are requested as."""

    def engine_profile(self) -> EngineProfile:
        """Only what the gateway and the engine need: no prices, no node labels."""
        return EngineProfile(**{field: getattr(self, field) for field in EngineProfile.model_fields})


class LearnedStep(ApiModel):
    """Coefficients of a step that only decodes, as learned; those of the spec are what was declared."""

    overhead_ms: NonNegativeFloat
    """Milliseconds of every step."""
    a_ms: NonNegativeFloat
    """Milliseconds to read the weights once."""
    d_ms_per_token: NonNegativeFloat
    """Milliseconds for each token computed in a step."""
    k_ms_per_kv_token: NonNegativeFloat
    """Milliseconds for each token of context."""
    b_ms_per_seq: NonNegativeFloat
    """Milliseconds for each decoding sequence."""


class LearnedPrefill(ApiModel):
    """Coefficients of what computes prompts, as learned."""

    d_ms_per_token: NonNegativeFloat
    """Milliseconds for each token computed in a step."""
    s_ms_per_pair: NonNegativeFloat
    """Milliseconds for each pair of a new and an earlier token."""


class LearnedNumbers(ApiModel):
    """What the gateways of one ServingPool have learned together."""

    serving_pool: NonEmptyStr
    """The ServingPool, as `NAMESPACE/NAME`."""
    model: str = ""
    """The model that its engines load."""
    accurate: bool | None = None
    """Whether the declared numbers are near; left out while too little is known. Where they are not, the ServingPool is
    scaled by the learned ones."""
    step_ratio: NonNegativeFloat | None = None
    """Learned over declared time of a step with 16 decodes of 1,024 tokens: above 1, engines are slower. Left out
    where nothing is declared."""
    step_observations: NonNegativeInt = 0
    """Mean gaps between tokens, of 2 s each, from which it was learned, when this was written."""
    step: LearnedStep | None = None
    """The coefficients of a decode step; left out while too little has been observed."""
    prefill_ratio: NonNegativeFloat | None = None
    """Real over declared time of a prefill: dMsPerToken and sMsPerPair are by so much larger. Left out where nothing is
    declared."""
    prefill: LearnedPrefill | None = None
    """The coefficients that prefills have; left out while too few have ended."""
    prefills: NonNegativeInt = 0
    """Prefills from which that was learned, when this was written."""


class HardwareProfileStatus(AcceptedStatus):
    """Whether the profile is accepted, and what was learned of such engines."""

    learned: Annotated[Seq[LearnedNumbers], Field(max_length=MAX_LEARNED)] = ()
    """By ServingPool: those with most observations, 16 at most. Written anew when a judgement changes, or figures by
    more than 5 % after 5 minutes."""


class HardwareProfile(Resource):
    """How fast one engine of a model is on one kind of hardware, how much KV it holds, and which nodes have it."""

    kind_name: ClassVar[str] = "HardwareProfile"
    plural: ClassVar[str] = "hardwareprofiles"
    short_names: ClassVar[tuple[str, ...]] = ("hwp",)
    namespaced: ClassVar[bool] = False
    printer_columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("HARDWARE", ".spec.hardware", description="What it is."),
        PrinterColumn("GPUS", ".spec.gpus", type="integer", description="GPUs of one engine."),
        PrinterColumn("KV TOKENS", ".spec.kvTokens", type="integer", description="Tokens that the KV cache holds."),
        PrinterColumn(
            "ACCURATE",
            ".status.conditions[?(@.type=='ProfileAccurate')].status",
            description="Whether engines are as fast as declared.",
        ),
        PrinterColumn("AGE", ".metadata.creationTimestamp", type="date"),
    )

    api_version: Literal["serving.ballast.dev/v1alpha1"] = API_VERSION
    """Group and version of the object."""
    kind: Literal["HardwareProfile"] = "HardwareProfile"
    """Kind of the object."""
    spec: HardwareProfileSpec
    """Coefficients of the step time, KV capacity and link of one engine, and the nodes that have the hardware. A change
    of a speed reaches gateways and replaces no engine; one of gpus, resourceName, nodeSelector, blockSize, maxNumSeqs
    or maxNumBatchedTokens replaces engines, because these are in their pods."""
    status: HardwareProfileStatus | None = None
    """Whether the operator accepts the profile, and how near it is to what gateways see; absent until its first
    look."""
