"""ServingPool: one model served by pools of prefill and decode engines behind one gateway."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ballast_api import names
from ballast_api.common import (
    API_VERSION,
    DNS_LABEL,
    DNS_LABEL_STARTING_WITH_LETTER,
    NO_SPACES,
    ApiModel,
    DateTime,
    ImagePullPolicy,
    KeyedBy,
    LocalRef,
    NonEmptyStr,
    NonNegativeFloat,
    NonNegativeInt,
    ObjectName,
    Port,
    PositiveFloat,
    PositiveInt,
    PrinterColumn,
    Resource,
    Rule,
    Seq,
    ShareRatio,
)
from ballast_api.conditions import Conditions
from ballast_api.faces import Face, FaceField
from ballast_api.pod_template import PodTemplateOverlay
from ballast_api.serving_pool_rules import (
    autoscaling_rules,
    pool_rules,
    ratio_rules,
    rollout_rules,
    serving_pool_spec_rules,
)

Role = names.RoleName
PoolName = Annotated[str, Field(min_length=1, max_length=names.MAX_POOL_NAME, pattern=DNS_LABEL)]


def _int_or_text(value: object) -> object:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    raise PydanticCustomError("int_or_percent", "must be a whole number or a percentage such as '25%'")


IntOrPercent = Annotated[int | str, BeforeValidator(_int_or_text), WithJsonSchema({"x-kubernetes-int-or-string": True})]
ImageName = Annotated[str, Field(min_length=1, max_length=1024, pattern=NO_SPACES)]


class ModelSpec(ApiModel):
    """The model that the pool serves."""

    name: Annotated[str, Field(min_length=1, max_length=512, pattern=NO_SPACES)]
    """Name or path that the engines load, such as `Qwen/Qwen3-32B`."""
    served_names: Annotated[Seq[NonEmptyStr], Field(max_length=16)] = ()
    """Names that clients may use in `model`; by default only `name`."""
    max_model_len: PositiveInt | None = None
    """Tokens of prompt and output together (vLLM's --max-model-len); by default the model's own limit."""

    def all_served_names(self) -> tuple[str, ...]:
        """The names that clients may use; the first is the canonical one."""
        return self.served_names or (self.name,)


class KVConnectorSpec(ApiModel):
    """How KV blocks travel from the prefill to the decode engine."""

    type: Literal["NixlConnector"] = "NixlConnector"
    """vLLM's name of the connector. NixlConnector pulls: decode fetches when prefill has ended."""
    config: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})] = Field(
        default_factory=dict
    )
    """More keys of vLLM's --kv-transfer-config, passed on as they are."""


class EngineSpec(ApiModel):
    """The container that runs the engine."""

    image: ImageName
    """Image of the engine, such as `vllm/vllm-openai:v0.32.0`."""
    image_pull_policy: ImagePullPolicy | None = None
    """As in a container; by default Kubernetes' own rule."""
    command: Annotated[Seq[NonEmptyStr], Field(min_length=1, max_length=64)] = ("vllm",)
    """Command of the container; the operator appends `serve MODEL --port PORT` and more, then `args`."""
    args: Annotated[Seq[str], Field(max_length=128)] = ()
    """Arguments after those that Ballast writes; the last one wins in vLLM."""
    port: Port = names.PORT_ENGINE
    """Port of the engine's HTTP API."""
    kv_connector: KVConnectorSpec = Field(default_factory=KVConnectorSpec)
    """How KV travels from prefill to decode."""


class AutoscalingSpec(ApiModel):
    """Bounds within which Ballast chooses the number of instances."""

    rules: ClassVar[tuple[Rule, ...]] = autoscaling_rules()

    min_replicas: PositiveInt
    """Instances at least."""
    max_replicas: PositiveInt
    """Instances at most."""


class PoolSpec(ApiModel):
    """Instances of one role on one kind of hardware: one Deployment."""

    rules: ClassVar[tuple[Rule, ...]] = pool_rules()

    name: PoolName
    """Name of the pool, unique in the ServingPool; objects are called `<serving pool>-<pool>`."""
    role: Role
    """Prefill computes prompts, Decode generates, Flexible does either."""
    hardware: ObjectName
    """Name of the HardwareProfile that the instances run on."""
    replicas: NonNegativeInt | None = None
    """Instances, fixed. Set this or `autoscaling`."""
    autoscaling: AutoscalingSpec | None = None
    """Instances, chosen by Ballast within bounds. Set this or `replicas`."""
    tensor_parallel_size: PositiveInt | None = None
    """GPUs of one node that one engine uses (vLLM's --tensor-parallel-size); by default the profile's `gpus`."""
    nodes_per_instance: PositiveInt = 1
    """Nodes that one instance spans."""
    template: PodTemplateOverlay | None = None
    """Merged over the generated pods: resources, tolerations, volumes. Container `engine` is the engine."""

    @property
    def wanted_replicas(self) -> int:
        """Instances asked for: `replicas`, or the lower bound until something scales."""
        if self.replicas is not None:
            return self.replicas
        return self.autoscaling.min_replicas if self.autoscaling else 0

    @property
    def least_gpus(self) -> int:
        """GPUs that `wanted_replicas` need at least; a HardwareProfile may ask for more of each instance."""
        return self.wanted_replicas * (self.tensor_parallel_size or 1) * self.nodes_per_instance


class RatioSpec(ApiModel):
    """How Ballast keeps prefill and decode in proportion. A ratio is prefill instances for each decode instance."""

    rules: ClassVar[tuple[Rule, ...]] = ratio_rules()

    mode: Literal["Auto", "Advisory", "Off"] = "Off"
    """Auto acts, Advisory only says what it would do, "Off" does neither. Write "Off" in quotes: YAML takes a bare Off
    for false."""
    min_ratio: PositiveFloat | None = None
    """Prefill instances for each decode instance, at least."""
    max_ratio: PositiveFloat | None = None
    """Prefill instances for each decode instance, at most."""


class ParentRef(ApiModel):
    """A Gateway that routes to the pool (a subset of Gateway API's ParentReference)."""

    group: Annotated[str, Field(max_length=253)] = "gateway.networking.k8s.io"
    """Group of the parent."""
    kind: NonEmptyStr = "Gateway"
    """Kind of the parent."""
    name: ObjectName
    """Name of the parent."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)] | None = None
    """Namespace of the parent; by default the ServingPool's."""
    section_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """One listener of the parent; by default all."""
    port: Port | None = None
    """One port of the parent; by default all."""


class GatewaySpec(ApiModel):
    """The gateway in front of the engines."""

    replicas: NonNegativeInt = 1
    """Gateway pods."""
    image: ImageName | None = None
    """Image of the gateway; by default the operator's own."""
    image_pull_policy: ImagePullPolicy | None = None
    """As in a container; by default Kubernetes' own rule."""
    face: FaceField = Face.PROXY
    """Proxy takes OpenAI requests itself, Picker tells an Envoy where to send them (ext_proc), Both does both."""
    parent_refs: Annotated[Seq[ParentRef], Field(max_length=8)] = ()
    """Gateways that an HTTPRoute is attached to; none by default."""
    template: PodTemplateOverlay | None = None
    """Merged over the gateway's pods. Container `gateway` is the gateway."""


class RolloutSpec(ApiModel):
    """How pods are replaced when the spec changes."""

    rules: ClassVar[tuple[Rule, ...]] = rollout_rules()

    max_surge: IntOrPercent = "25%"
    """Pods above the wanted number during a rollout: a number, or a percentage (rounded up). They need free GPUs:
    where there are none, set this to 0 and maxUnavailable to 1 or more."""
    max_unavailable: IntOrPercent = 0
    """Pods below the wanted number during a rollout: a number, or a percentage (rounded down)."""
    max_skew: ShareRatio = 0.25
    """How far the share of new pods may differ between prefill and decode."""


class ServingPoolSpec(ApiModel):
    """What is served, by which engines, behind which gateway."""

    rules: ClassVar[tuple[Rule, ...]] = serving_pool_spec_rules()

    model: ModelSpec
    """The model."""
    engine: EngineSpec
    """The engine, the same in all pools."""
    pools: Annotated[Seq[PoolSpec], Field(min_length=1, max_length=16), KeyedBy("name")]
    """The engines: at least one that can prefill and one that can decode."""
    ratio: RatioSpec = Field(default_factory=RatioSpec)
    """How the P:D ratio is kept."""
    policy_ref: LocalRef | None = None
    """The SchedulingPolicy; by default least-uncached-tokens and ballast."""
    slo_ref: LocalRef | None = None
    """The ServiceLevelObjective; by default none."""
    gateway: GatewaySpec = Field(default_factory=GatewaySpec)
    """The gateway."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """How pods are replaced."""
    gpu_budget: NonNegativeInt | None = None
    """GPUs that all instances together may use; by default no limit."""

    @property
    def least_gpus(self) -> int:
        """GPUs that all pools together need at least."""
        return sum(pool.least_gpus for pool in self.pools)


class PoolStatus(ApiModel):
    """What one pool has."""

    name: str
    """Name of the pool."""
    role: Role
    """Its role."""
    replicas: NonNegativeInt = 0
    """Instances asked for."""
    ready_replicas: NonNegativeInt = 0
    """Instances that are ready."""
    updated_replicas: NonNegativeInt = 0
    """Instances of the newest revision."""
    unavailable_replicas: NonNegativeInt = 0
    """Instances that are missing or not ready."""


class RoleStatus(ApiModel):
    """What all pools of one role have together."""

    replicas: NonNegativeInt = 0
    """Instances asked for."""
    ready_replicas: NonNegativeInt = 0
    """Instances that are ready."""


class GatewayStatus(ApiModel):
    """What the gateway has."""

    replicas: NonNegativeInt = 0
    """Gateway pods asked for."""
    ready_replicas: NonNegativeInt = 0
    """Gateway pods that are ready."""


class ScalingDecision(ApiModel):
    """The last scaling decision, "why not" included."""

    time: DateTime
    """When it was taken."""
    reason: NonEmptyStr
    """One CamelCase word."""
    message: str = ""
    """For people: inputs, candidates tried, why this one."""
    prefill_replicas: NonNegativeInt | None = None
    """Prefill instances decided on."""
    decode_replicas: NonNegativeInt | None = None
    """Decode instances decided on."""
    applied: bool = False
    """False for advice, and when nothing had to change."""


class DisplayStatus(ApiModel):
    """What `kubectl get` prints."""

    prefill: str = ""
    """Ready of wanted prefill instances: `2/2`."""
    decode: str = ""
    """Ready of wanted decode instances: `4/4`."""
    ratio: str = ""
    """Ready prefill to ready decode instances: `2:4`."""
    slo_percent: str = ""
    """Attainment in percent: `99.2`."""


class ServingPoolStatus(ApiModel):
    """What is."""

    observed_generation: NonNegativeInt | None = None
    """The `metadata.generation` that this status speaks of."""
    conditions: Conditions = ()
    """Available, Progressing, Degraded, SLOMet, ResolvedRefs."""
    pools: Annotated[Seq[PoolStatus], KeyedBy("name")] = ()
    """Counts by pool."""
    prefill: RoleStatus | None = None
    """Counts of the prefill pools."""
    decode: RoleStatus | None = None
    """Counts of the decode pools."""
    flexible: RoleStatus | None = None
    """Counts of the flexible pools."""
    gateway: GatewayStatus | None = None
    """Counts of the gateway."""
    ratio: NonNegativeFloat | None = None
    """Ready prefill instances for each ready decode instance; absent while no decode instance is ready."""
    attainment: ShareRatio | None = None
    """Share of the requests in the last window that met their SLO."""
    last_scaling: ScalingDecision | None = None
    """The last scaling decision."""
    display: DisplayStatus | None = None
    """The columns of `kubectl get`."""


class ServingPool(Resource):
    """One model, served by prefill and decode pools behind one gateway."""

    kind_name: ClassVar[str] = "ServingPool"
    plural: ClassVar[str] = "servingpools"
    short_names: ClassVar[tuple[str, ...]] = ("sp",)
    max_name_length: ClassVar[int] = names.MAX_SERVING_POOL_NAME
    name_pattern: ClassVar[str] = DNS_LABEL_STARTING_WITH_LETTER
    printer_columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("MODEL", ".spec.model.name", description="The model.", priority=1),
        PrinterColumn("PREFILL", ".status.display.prefill", description="Ready of wanted prefill instances."),
        PrinterColumn("DECODE", ".status.display.decode", description="Ready of wanted decode instances."),
        PrinterColumn("RATIO", ".status.display.ratio", description="Ready prefill to ready decode instances."),
        PrinterColumn("SLO%", ".status.display.sloPercent", description="Requests that met their SLO, percent."),
        PrinterColumn(
            "AVAILABLE", '.status.conditions[?(@.type=="Available")].status', description="Whether it can serve."
        ),
        PrinterColumn("AGE", ".metadata.creationTimestamp", type="date"),
    )

    api_version: Literal["serving.ballast.dev/v1alpha1"] = API_VERSION
    """Group and version."""
    kind: Literal["ServingPool"] = "ServingPool"
    """ServingPool."""
    spec: ServingPoolSpec
    """What is wanted."""
    status: ServingPoolStatus | None = None
    """What is; written by the operator."""
