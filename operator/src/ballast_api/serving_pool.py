"""ServingPool: one model served by pools of prefill and decode engines behind one gateway."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ballast_api import names
from ballast_api.common import (
    ABSOLUTE_PATH,
    API_VERSION,
    DNS_LABEL,
    DNS_LABEL_STARTING_WITH_LETTER,
    HOSTNAME,
    NO_SPACES,
    ApiModel,
    DateTime,
    DrainSeconds,
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
    StringMap,
)
from ballast_api.conditions import Conditions
from ballast_api.faces import Face, FaceField
from ballast_api.gateway_settings import GatewayTuning, Limits
from ballast_api.pod_template import OpenModel, PodTemplateOverlay
from ballast_api.service_level_objective import HeaderMatch
from ballast_api.serving_pool_rules import (
    autoscaling_rules,
    gateway_spec_rules,
    model_volume_rules,
    pool_rules,
    ratio_rules,
    rollout_rules,
    route_match_rules,
    serving_pool_spec_rules,
)

Role = names.RoleName
PoolName = Annotated[str, Field(min_length=1, max_length=names.MAX_POOL_NAME, pattern=DNS_LABEL)]


def _int_or_text(value: object) -> object:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    raise PydanticCustomError("int_or_percent", "must be a whole number or a percentage such as '25%'")


IntOrPercent = Annotated[int | str, BeforeValidator(_int_or_text), WithJsonSchema({"x-kubernetes-int-or-string": True})]
Hostname = Annotated[str, Field(min_length=1, max_length=253, pattern=HOSTNAME)]
ImageName = Annotated[str, Field(min_length=1, max_length=1024, pattern=NO_SPACES)]


class EnvVar(OpenModel):
    """A variable, as in a container of a pod: `value`, or `valueFrom` with a Secret and the like."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=NO_SPACES)]
    """Name of the variable."""
    value: str | None = None
    """Its value; put numbers and booleans in quotes. Left out, `valueFrom` says where it comes from, or it is
    empty."""


class ModelImage(ApiModel):
    """An OCI image that holds the weights. The cluster must have the volume type `image` (Kubernetes 1.33)."""

    reference: ImageName
    """Name of the image."""
    pull_policy: ImagePullPolicy | None = None
    """When it is pulled. Left out, Kubernetes decides by the tag."""


class ModelVolume(ApiModel):
    """A volume with the weights in the pods of all pools: one of `claim`, `image` and `cache`."""

    rules: ClassVar[tuple[Rule, ...]] = model_volume_rules()

    claim: ObjectName | None = None
    """Name of a PersistentVolumeClaim that holds the weights; mounted read-only. Pods on several nodes need one that
    many nodes may read. Left out, `image` or `cache` is set."""
    image: ModelImage | None = None
    """An OCI image that holds them; mounted read-only. Left out, `claim` or `cache` is set."""
    cache: ObjectName | None = None
    """Name of a PersistentVolumeClaim that engines download into, and look in before they do (HF_HOME). Pods on several
    nodes need one that many nodes may write. Left out, `claim` or `image` is set."""
    mount_path: Annotated[str, Field(min_length=2, max_length=512, pattern=ABSOLUTE_PATH)] = "/models"
    """Folder of the volume in the engine's container. With `claim` and `image` let the model's `name` be a path below
    it."""


class ModelSpec(ApiModel):
    """The model that all engines load."""

    name: Annotated[str, Field(min_length=1, max_length=512, pattern=NO_SPACES)]
    """Name or path that the engines load, such as `Qwen/Qwen3-32B`."""
    served_names: Annotated[Seq[NonEmptyStr], Field(max_length=16)] = ()
    """Names that clients may use in `model`; the first is the canonical one. Left out, only `name` is accepted."""
    max_model_len: PositiveInt | None = None
    """Tokens of prompt and output together, at most (vLLM's --max-model-len). Left out, the model's own limit holds."""
    volume: ModelVolume | None = None
    """Where the weights come from. Left out, each engine downloads them when it starts, into its container."""

    def all_served_names(self) -> tuple[str, ...]:
        """The names that clients may use; the first is the canonical one."""
        return self.served_names or (self.name,)


class KVConnectorSpec(ApiModel):
    """How KV blocks travel from the prefill to the decode engine."""

    type: Literal["NixlConnector"] = "NixlConnector"
    """vLLM's name of the connector. NixlConnector pulls: the decode engine fetches the blocks when prefill has
    ended."""
    config: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})] = Field(
        default_factory=dict
    )
    """Further keys of vLLM's --kv-transfer-config. They win over the keys that Ballast writes; empty adds none."""


class EngineSpec(ApiModel):
    """The container that runs the engine. A change of it replaces the pods of all pools."""

    image: ImageName
    """Image of the engine, such as `vllm/vllm-openai:v0.32.0`."""
    image_pull_policy: ImagePullPolicy | None = None
    """imagePullPolicy of the engine container. Left out, Kubernetes decides by the image's tag."""
    command: Annotated[Seq[NonEmptyStr], Field(min_length=1, max_length=64)] = ("vllm",)
    """Command of the container. The operator appends `serve MODEL`, the options that Ballast needs, and `args`."""
    args: Annotated[Seq[str], Field(max_length=128)] = ()
    """Arguments after those that Ballast writes. vLLM takes the last one of a repeated option, so these win."""
    env: Annotated[Seq[EnvVar], Field(max_length=128), KeyedBy("name")] = ()
    """Environment of the container, beyond what Ballast sets; of a name that Ballast sets, this one counts."""
    port: Port = names.PORT_ENGINE
    """TCP port of the engine's HTTP API, which the gateway and the Services use."""
    kv_connector: KVConnectorSpec = Field(default_factory=KVConnectorSpec)
    """How KV blocks travel from prefill to decode. Left out, engines use NixlConnector."""
    agent: Literal["Auto", "Never"] = "Auto"
    """Whether the pods of Decode and Flexible pools get Ballast's agent as a sidecar, which hands off, cuts and moves
    requests behind an Envoy. Auto: with the faces Picker and Both. Never: Envoy's requests are placed, nothing else."""

    @property
    def port_behind_agent(self) -> int:
        """Where the engine listens on the pod's loopback, behind an agent on `port`."""
        usual = names.PORT_ENGINE_BEHIND_AGENT
        return usual if self.port != usual else usual + 1


class AutoscalingSpec(ApiModel):
    """Who sets a pool's number of instances, and its bounds. With `ratio.mode: Auto` the operator sets it; otherwise
    another scaler does, by the pool's EnginePool, within these bounds."""

    rules: ClassVar[tuple[Rule, ...]] = autoscaling_rules()

    min_replicas: NonNegativeInt
    """Instances at least, and the number that a new pool starts with. 0 where the fleet may scale to zero
    (`ratio.scaleToZeroAfterS`), or with `by: External`."""
    max_replicas: PositiveInt
    """Instances at most. A higher number that another scaler sets is set back to this one."""
    by: Literal["Ballast", "External"] = "Ballast"
    """Who sets the number: Ballast does with `ratio.mode: Auto`; External leaves it to another scaler in every mode.
    Its target is the EnginePool `<serving pool>-<pool>`, which has a scale subresource; Ballast's advice is a metric
    that it can follow, with `ratio.mode` Auto or Advisory."""


class PoolSpec(ApiModel):
    """Instances of one role on one kind of hardware: one Deployment, or one LeaderWorkerSet."""

    rules: ClassVar[tuple[Rule, ...]] = pool_rules()

    name: PoolName
    """Name of the pool, unique in the ServingPool. Its objects are called `<serving pool>-<pool>`."""
    role: Role
    """What the instances do: Prefill computes prompts, Decode generates tokens, Flexible does both."""
    hardware: ObjectName
    """Name of the HardwareProfile that the instances run on. It gives node labels, GPUs and the speed that the gateway
    expects."""
    replicas: NonNegativeInt | None = None
    """Number of instances; 0 keeps the pool without pods. Set either this or `autoscaling`."""
    autoscaling: AutoscalingSpec | None = None
    """Bounds within which the number of instances follows the traffic. Set either this or `replicas`."""
    tensor_parallel_size: PositiveInt | None = None
    """GPUs of one node that one engine uses (vLLM's --tensor-parallel-size). Left out, the `gpus` of the
    HardwareProfile."""
    image: ImageName | None = None
    """Image of the engines of this pool, such as one for its hardware. Left out, that of `engine`. Another image than
    the other pools' is part of what KV blocks depend on: changing it rolls all pools in step."""
    args: Annotated[Seq[str], Field(max_length=128)] = ()
    """Arguments of the engines of this pool, after those of `engine`, so these win."""
    env: Annotated[Seq[EnvVar], Field(max_length=128), KeyedBy("name")] = ()
    """Environment of the engines of this pool; of a name that `engine` or Ballast sets, this one counts."""
    nodes_per_instance: PositiveInt = 1
    """Nodes that one instance spans. With more than 1 an instance is a group of a LeaderWorkerSet, whose API the
    cluster must have; vLLM's tensor parallel ranks are spread over `tensorParallelSize` GPUs of each node."""
    template: PodTemplateOverlay | None = None
    """Merged over the generated pods, for resources, tolerations, volumes and the like; the container `engine` is the
    engine. Left out, the pods stay as generated."""

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


class RehearseSpec(ApiModel):
    """How much a rehearsal may cost."""

    cpu_s: Annotated[PositiveFloat, Field(le=600)] = 30.0
    """Seconds of processor time of the operator's pod that one rehearsal may take. Whoever needs more is not
    rehearsed."""
    timeout_s: Annotated[PositiveFloat, Field(le=600)] = 60.0
    """Seconds that a decision waits for its rehearsal at most, the collection of traffic included."""


class RatioSpec(ApiModel):
    """Who decides how many instances each stage has, and within which proportion: prefill instances for each decode
    instance. An instance of a Flexible pool counts for the stage that it has."""

    rules: ClassVar[tuple[Rule, ...]] = ratio_rules()

    mode: Literal["Auto", "Advisory", "Off"] = "Off"
    """Auto: the operator sets the instances of pools with `autoscaling` and the roles of Flexible ones, so that the
    objectives are met at the least cost. Advisory: it says what it would do, and changes nothing. Off: neither. Write
    "Off" in quotes: YAML takes a bare Off for false."""
    min_ratio: PositiveFloat | None = None
    """Prefill instances for each decode instance, at least, in decisions and advice. Left out, there is no lower
    bound."""
    max_ratio: PositiveFloat | None = None
    """Prefill instances for each decode instance, at most, in decisions and advice. Left out, there is no upper
    bound."""
    scale_to_zero_after_s: PositiveFloat | None = None
    """Seconds without a request after which all pools stop together, with mode Auto, where every pool has
    `autoscaling.minReplicas` 0. The next request is held by the gateway while instances start, for its `limits.holdS`
    (300 s unless it is set). Left out, an instance of each stage stays."""
    rehearse: RehearseSpec | None = None
    """Candidates are tried in the simulator on the traffic of the last two minutes before a change, in a process beside
    the operator, one ServingPool at a time. `{}` takes the defaults. What takes more than its budget is decided by
    arithmetic, and the decision says so. Left out, arithmetic decides."""


class ParentRef(ApiModel):
    """A Gateway that routes to the pool (a subset of Gateway API's ParentReference)."""

    group: Annotated[str, Field(max_length=253)] = "gateway.networking.k8s.io"
    """API group of the parent."""
    kind: NonEmptyStr = "Gateway"
    """Kind of the parent."""
    name: ObjectName
    """Name of the parent."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)] | None = None
    """Namespace of the parent. Left out, the ServingPool's own."""
    section_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the one listener of the parent to attach to. Left out, all listeners."""
    port: Port | None = None
    """Port of the one listener of the parent to attach to. Left out, all ports."""


class RouteMatch(ApiModel):
    """Which requests of its parents are a ServingPool's, all conditions together. Several ServingPools share a Gateway
    by unlike hostnames, headers or models; of routes that match alike the Gateway takes the oldest."""

    rules: ClassVar[tuple[Rule, ...]] = route_match_rules()

    headers: Annotated[Seq[HeaderMatch], Field(max_length=8), KeyedBy("name")] = ()
    """Headers that a request must carry. Left out, none is required."""
    by_model: bool = False
    """Whether the header x-gateway-model-name must be one of the model's served names. Clients set it, or a body-based
    router in front, as the Gateway API Inference Extension has one: the route is chosen before a picker sees the
    body."""


class ServiceSpec(ApiModel):
    """The Service that clients of the gateway reach."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Who reaches it: the cluster alone, anybody at a port of each node, or anybody at a load balancer's address."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations of the Service, such as those that a cloud's load balancers read. Left out, none."""


class GatewaySpec(ApiModel):
    """The gateway in front of the engines."""

    rules: ClassVar[tuple[Rule, ...]] = gateway_spec_rules()

    replicas: NonNegativeInt = 2
    """Number of gateway pods; with 0 no request is served, and with 1 none while its pod or node is replaced."""
    image: ImageName | None = None
    """Image of the gateway. Left out, the operator's default, which is its own image unless its administrator sets
    another."""
    image_pull_policy: ImagePullPolicy | None = None
    """imagePullPolicy of the gateway container. Left out, the operator's default for its default image; for an `image`
    set here Kubernetes decides by the tag."""
    face: FaceField = Face.PROXY
    """How requests come in. Proxy takes OpenAI requests itself; Picker answers an Envoy that asks where to send a
    request (ext_proc); Both does both."""
    parent_refs: Annotated[Seq[ParentRef], Field(max_length=8)] = ()
    """Gateways that an HTTPRoute attaches the pool to. Left out, no HTTPRoute is made."""
    hostnames: Annotated[Seq[Hostname], Field(max_length=16)] = ()
    """Host names of the HTTPRoute that `parentRefs` asks for, such as `chat.example.com`. Left out, every host of the
    parents' listeners."""
    match: RouteMatch = Field(default_factory=RouteMatch)
    """Which requests of the parents of `parentRefs` are this ServingPool's. Left out, all below /v1."""
    service: ServiceSpec = Field(default_factory=ServiceSpec)
    """The gateway's Service for clients. Left out, clients within the cluster reach it."""
    settings: GatewayTuning | None = None
    """Settings of the gateway's own, such as limits, timeouts and what it believes of clients. Left out, its defaults.
    Running gateways take a change, but for fields that are said to restart their pods."""
    template: PodTemplateOverlay | None = None
    """Merged over the gateway's pods; the container `gateway` is the gateway. Left out, the pods stay as generated."""


class CanarySpec(ApiModel):
    """A trial of each new KV revision before it replaces the old one: it gets a share of the requests, and both sides
    are counted apart. Where the canary is clearly worse, it gets no more requests, the old revision has all its pods
    again, and the rollout is paused. Going back to a revision that still has pods takes none."""

    weight: Annotated[int, Field(ge=1, le=50)] = 10
    """Percent of the requests, by a hash of their ids. Each pool starts as many pods as carry it, at least one."""
    observe_s: Annotated[float, Field(ge=1, le=3600)] = 300.0
    """Seconds for which the canary is watched once its pods are ready."""
    min_requests: PositiveInt = 100
    """Requests that the canary must have had before it is judged fit; until then the rollout waits. What is clearly
    worse is paused earlier."""


class RolloutSpec(ApiModel):
    """How engine pods are replaced when their template changes. A change that KV blocks depend on, such as another
    image, replaces those of all pools in step; any other those of its pool alone."""

    rules: ClassVar[tuple[Rule, ...]] = rollout_rules()

    max_surge: IntOrPercent = "25%"
    """Pods above the wanted number during a rollout: a number, or a percentage of it (rounded up). They need free GPUs:
    where there are none, set this to 0 and maxUnavailable to 1 or more."""
    max_unavailable: IntOrPercent = 0
    """Pods below the wanted number during a rollout: a number, or a percentage of it (rounded down)."""
    max_skew: ShareRatio = 0.25
    """How far the share of new pods may differ between pools while all are replaced in step, from 0 to 1. Where whole
    pods do not allow that, the step that leaves the least difference is taken."""
    canary: CanarySpec | None = None
    """Tries a new revision on a part of the traffic first, where all pools are replaced in step. Left out, the rollout
    watches only whether its pods get ready."""


class ScaleDownSpec(ApiModel):
    """When decisions let a pool have fewer instances, and how instances go, by a decision, by an edit or in a rollout:
    each is emptied first."""

    stabilization_s: Annotated[NonNegativeFloat, Field(le=86_400)] | None = None
    """Seconds for which fewer instances must have been right before a decision of `ratio` takes one away, as an
    HorizontalPodAutoscaler's stabilizationWindowSeconds. A shorter time costs fewer GPU-hours, and more requests are
    late when traffic comes back. Left out, 300."""

    drain_timeout_s: DrainSeconds | None = None
    """Seconds until an instance goes although requests are still there. These have the drain time of the engine then
    (`gateway.settings.limits.drainTimeoutS`). 0 empties none before. Left out, as long as that drain time."""


class ServingPoolSpec(ApiModel):
    """What is served, by which engines, behind which gateway."""

    rules: ClassVar[tuple[Rule, ...]] = serving_pool_spec_rules()

    model: ModelSpec
    """The model that all engines load, and the names that clients may use for it."""
    engine: EngineSpec
    """The container that runs the engine, the same in all pools."""
    pools: Annotated[Seq[PoolSpec], Field(min_length=1, max_length=16), KeyedBy("name")]
    """Groups of engines, by role and hardware. At least one must be able to prefill and one to decode."""
    ratio: RatioSpec = Field(default_factory=RatioSpec)
    """Who decides how many instances prefill and decode have. Left out, nobody: counts stay as they are set."""
    policy_ref: LocalRef | None = None
    """Name of the SchedulingPolicy in the same namespace that the gateway follows. Left out, least-uncached-tokens
    places prefills and ballast places decodes."""
    slo_ref: LocalRef | None = None
    """Name of the one ServiceLevelObjective in the same namespace that the pool is held to. It must exist and be valid.
    Left out, `sloRefs` has them."""
    slo_refs: Annotated[Seq[LocalRef], Field(max_length=16), KeyedBy("name")] = ()
    """Names of several ServiceLevelObjectives in the same namespace, one for each class of requests, in place of
    `sloRef`. A request belongs to the first one whose `match` it meets. Left out, and `sloRef` too, the pool has no
    objective."""
    gateway: GatewaySpec = Field(default_factory=GatewaySpec)
    """The gateway in front of the engines. Left out, two pods with the face Proxy."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """How engine pods are replaced when their template changes. Left out, up to 25% more pods start before old ones
    end."""
    scale_down: ScaleDownSpec = Field(default_factory=ScaleDownSpec)
    """How instances go when a pool is to have fewer. Left out, each is emptied first, for as long as engines drain."""
    gpu_budget: NonNegativeInt | None = None
    """GPUs that all instances together may use. No decision of `ratio` goes beyond it, ending instances included, and
    rollouts have no more pods above the wanted number than it leaves. Where the spec itself goes beyond it, no engine
    Deployment is changed. Left out, there is no limit."""

    @property
    def has_agents(self) -> bool:
        """Whether pods that decode get the agent: it holds the streams that end there."""
        return self.engine.agent == "Auto" and self.gateway.face.serves_picker

    def has_agent(self, pool: PoolSpec) -> bool:
        """Whether the pods of `pool` get it."""
        return self.has_agents and pool.role != "Prefill"

    @property
    def drain_deadline_s(self) -> float:
        """Seconds that an instance has to become empty before it goes."""
        limits = Limits() if self.gateway.settings is None else self.gateway.settings.limits
        chosen = self.scale_down.drain_timeout_s
        return limits.drain_timeout_s if chosen is None else chosen

    def steers(self, pool: PoolSpec) -> bool:
        """Whether Ballast's decisions set the number of this pool's instances."""
        return self.ratio.mode == "Auto" and pool.autoscaling is not None and pool.autoscaling.by == "Ballast"

    def leaves_to_others(self, pool: PoolSpec) -> bool:
        """Whether other scalers set the number of this pool's instances, by its EnginePool."""
        return pool.autoscaling is not None and not self.steers(pool)

    @property
    def objective_names(self) -> tuple[str, ...]:
        """ServiceLevelObjectives that the pool is held to, in the order of matching."""
        return tuple(reference.name for reference in (*((self.slo_ref,) if self.slo_ref else ()), *self.slo_refs))

    @property
    def least_gpus(self) -> int:
        """GPUs that all pools together need at least."""
        return sum(pool.least_gpus for pool in self.pools)


class DrainStatus(ApiModel):
    """One instance that is being emptied."""

    name: str
    """Name of the pod."""
    requests: NonNegativeInt | None = None
    """Requests that are still there; left out if gateways have not said."""
    tied: NonNegativeInt = 0
    """Those of them that cannot move: they end in place."""


class PoolStatus(ApiModel):
    """Counts of one pool."""

    name: str
    """Name of the pool in the spec."""
    role: Role
    """Role of the pool in the spec."""
    replicas: NonNegativeInt = 0
    """Number of instances that are wanted."""
    ready_replicas: NonNegativeInt = 0
    """Number of instances that are ready."""
    updated_replicas: NonNegativeInt = 0
    """Number of instances of the newest revision of the pod template."""
    unavailable_replicas: NonNegativeInt = 0
    """Number of wanted instances that are missing or not ready."""
    draining: Annotated[Seq[DrainStatus], KeyedBy("name")] = ()
    """Instances that are being emptied before they go."""


class RoleStatus(ApiModel):
    """Counts of all pools of one role."""

    replicas: NonNegativeInt = 0
    """Number of instances that are wanted."""
    ready_replicas: NonNegativeInt = 0
    """Number of instances that are ready."""


class GatewayStatus(ApiModel):
    """Counts of the gateway."""

    replicas: NonNegativeInt = 0
    """Number of gateway pods that are wanted."""
    ready_replicas: NonNegativeInt = 0
    """Number of gateway pods that are ready."""
    settings_hash: str = ""
    """Hash of the newest settings, as the gateways' admin API shows it; empty while they are held."""


class ObjectiveStatus(ApiModel):
    """How the requests of one class were served, by what its gateways counted."""

    name: str
    """Name of the ServiceLevelObjective."""
    met: Literal["True", "False", "Unknown"]
    """Whether the attainment is at or above the target, as far as its interval can tell."""
    target: ShareRatio
    """Share of requests that must meet every threshold."""
    attainment: ShareRatio | None = None
    """Share of the requests that met every threshold; absent where that is known of too few of them."""
    lower: ShareRatio = 0.0
    """Lower end of its interval at 95 %."""
    upper: ShareRatio = 1.0
    """Upper end of its interval at 95 %."""
    window_s: NonNegativeInt
    """Seconds that the figures are about."""
    requests: NonNegativeInt = 0
    """Requests that ended in that time, shed and failed ones included."""
    unknown: NonNegativeInt = 0
    """Those of them of which no gateway saw enough to say."""


class ScalingDecision(ApiModel):
    """A decision about the number of instances, "no change" included."""

    time: DateTime
    """When the decision was taken."""
    reason: NonEmptyStr
    """Why, as one CamelCase word."""
    message: str = ""
    """Why, for people: inputs, candidates that were tried, and what decided."""
    prefill_replicas: NonNegativeInt | None = None
    """Number of prefill instances that was decided on; absent where the decision is not about them."""
    decode_replicas: NonNegativeInt | None = None
    """Number of decode instances that was decided on; absent where the decision is not about them."""
    applied: bool = False
    """Whether the pools were changed. False for advice, and when nothing had to change."""


class DisplayStatus(ApiModel):
    """Texts of the columns of `kubectl get`."""

    prefill: str = ""
    """Ready and wanted prefill instances, such as `2/2`; `-` without a Prefill pool."""
    decode: str = ""
    """Ready and wanted decode instances, such as `4/4`; `-` without a Decode pool."""
    ratio: str = ""
    """Ready prefill and ready decode instances, such as `2:4`."""
    ready: str = ""
    """Ready and wanted instances of all pools, such as `6/6`."""
    reason: str = ""
    """The reason of Progressing while it is deleted; else that of Available if it is not True, of Degraded or
    Progressing if they are; else that of Available."""
    slo_percent: str = ""
    """Attainment in percent, such as `99.2`: that of the objective that is furthest below its target, or least above.
    Empty while none is known."""


class ServingPoolStatus(ApiModel):
    """What the operator last found."""

    observed_generation: NonNegativeInt | None = None
    """The `metadata.generation` of the spec that this status is about."""
    conditions: Conditions = ()
    """Available, Progressing, Degraded, SLOMet and ResolvedRefs, and ScalingActive unless `ratio.mode` is Off, each
    with a reason and a message."""
    pools: Annotated[Seq[PoolStatus], KeyedBy("name")] = ()
    """Counts of each pool."""
    prefill: RoleStatus | None = None
    """Counts of all Prefill pools together; absent without one."""
    decode: RoleStatus | None = None
    """Counts of all Decode pools together; absent without one."""
    flexible: RoleStatus | None = None
    """Counts of all Flexible pools together; absent without one."""
    gateway: GatewayStatus | None = None
    """Counts of the gateway."""
    ratio: NonNegativeFloat | None = None
    """Ready prefill instances for each ready decode instance; absent while no decode instance is ready."""
    attainment: ShareRatio | None = None
    """Share of requests that met their objective, from 0 to 1: that of the objective that is furthest below its target,
    or least above. Absent while none is known."""
    objectives: Annotated[Seq[ObjectiveStatus], KeyedBy("name")] = ()
    """Attainment of each objective of the spec."""
    last_scaling: ScalingDecision | None = None
    """The last decision about the number of instances that said something new. Absent with `ratio.mode: "Off"`, and
    until the first one."""
    display: DisplayStatus | None = None
    """Texts of the columns of `kubectl get`."""


class ServingPool(Resource):
    """One model, served by prefill and decode pools behind one gateway."""

    kind_name: ClassVar[str] = "ServingPool"
    plural: ClassVar[str] = "servingpools"
    short_names: ClassVar[tuple[str, ...]] = ("spool",)
    max_name_length: ClassVar[int] = names.MAX_SERVING_POOL_NAME
    name_pattern: ClassVar[str] = DNS_LABEL_STARTING_WITH_LETTER
    printer_columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("MODEL", ".spec.model.name", description="The model.", priority=1),
        PrinterColumn("PREFILL", ".status.display.prefill", description="Ready of wanted prefill instances."),
        PrinterColumn("DECODE", ".status.display.decode", description="Ready of wanted decode instances."),
        PrinterColumn("RATIO", ".status.display.ratio", description="Ready prefill to ready decode instances."),
        PrinterColumn("SLO%", ".status.display.sloPercent", description="Requests that met their SLO, percent."),
        PrinterColumn("READY", ".status.display.ready", description="Ready of wanted instances of all pools."),
        PrinterColumn(
            "AVAILABLE", '.status.conditions[?(@.type=="Available")].status', description="Whether it can serve."
        ),
        PrinterColumn(
            "DEGRADED",
            '.status.conditions[?(@.type=="Degraded")].status',
            description="Whether something keeps it from its spec.",
        ),
        PrinterColumn("REASON", ".status.display.reason", description="The reason of the condition that matters most."),
        PrinterColumn("AGE", ".metadata.creationTimestamp", type="date"),
    )

    api_version: Literal["serving.ballast.dev/v1alpha1"] = API_VERSION
    """Group and version of the object."""
    kind: Literal["ServingPool"] = "ServingPool"
    """Kind of the object."""
    spec: ServingPoolSpec
    """What to serve: the model, its engines in pools, and the gateway in front of them."""
    status: ServingPoolStatus | None = None
    """Counts and conditions that the operator writes; absent until its first look."""
