"""GatewaySettings: the gateway's configuration file.

The operator renders it into a ConfigMap; by hand it is a YAML file (`ballast gateway --config FILE`). Both load it with
`load_settings`. Defaults are for a gateway in a pod.

A running gateway takes changes of the file, but for the fields marked with `RESTARTS` (`settings_changes`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

import yaml
from pydantic import Field, WithJsonSchema, model_validator

from ballast_api import names
from ballast_api.common import (
    HEADER_NAME,
    LAST_PORT,
    ApiModel,
    DrainSeconds,
    KeyedBy,
    NonEmptyStr,
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveFloat,
    PositiveInt,
    Rule,
    Seq,
    ShareRatio,
    raise_at,
)
from ballast_api.faces import Face, FaceField
from ballast_api.hardware_profile import EngineProfile
from ballast_api.network_types import Address, Origin, Path, PortOrAny, Receiver
from ballast_api.policy_fit import misfits
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_api.service_level_objective import ServiceLevelObjectiveSpec
from ballast_api.settings_changes import RESTARTS
from ballast_api.trace_protocols import TraceProtocol
from ballast_core.model.canary import Canary

LAST_BYTES_S = 2.0
"""How long clients may take for the last bytes of their answers when the gateway ends."""


class KubernetesDiscovery(ApiModel):
    """Endpoints are the ready pods that a label selector finds; roles come from their labels."""

    namespace: NonEmptyStr
    """Namespace of the pods."""
    selector: NonEmptyStr
    """Label selector, as in `kubectl get pods -l`."""
    port: Port = names.PORT_ENGINE
    """Port of the engines' HTTP API, in pods that do not name it as those of a ServingPool do (`http` of the container
    `engine`, or of `agent` in a pod with an agent)."""


class Discovery(ApiModel):
    """Where endpoints come from: exactly one of the two."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="kubernetes",
            cel="has(self.kubernetes) != has(self.file)",
            message="set exactly one of kubernetes and file",
            holds=lambda self: (self.kubernetes is None) != (self.file is None),
        ),
    )

    kubernetes: KubernetesDiscovery | None = None
    """Watch pods."""
    file: NonEmptyStr | None = None
    """Path of an endpoints file (see EndpointsFile); read again when it changes."""


class Listeners(ApiModel):
    """Ports that the gateway listens on. 0 takes any free port (the gateway prints which)."""

    host: NonEmptyStr = "0.0.0.0"
    """Address to bind."""
    proxy: PortOrAny = names.PORT_PROXY
    """OpenAI API, for the faces Proxy and Both."""
    ext_proc: PortOrAny = names.PORT_EXT_PROC
    """Envoy ext_proc gRPC, for the faces Picker and Both."""
    grpc_health: PortOrAny = names.PORT_GRPC_HEALTH
    """gRPC health, for the faces Picker and Both."""
    admin: PortOrAny = names.PORT_ADMIN
    """Prometheus metrics, /healthz, /readyz and the admin API."""


class TlsMode(StrEnum):
    """Whether a listener speaks TLS."""

    PLAINTEXT = "Plaintext"
    OPTIONAL = "Optional"
    REQUIRED = "Required"


_TLS_MODES = {"enum": [mode.value for mode in TlsMode], "type": "string"}
TlsModeField = Annotated[TlsMode, Field(strict=False), WithJsonSchema(_TLS_MODES)]
_PAIR_OF_FILES = Rule(
    field="keyFile",
    cel="has(self.certFile) == has(self.keyFile)",
    message="set both of certFile and keyFile, or neither",
    holds=lambda self: (self.cert_file is None) == (self.key_file is None),
)


class ProxyTls(ApiModel):
    """TLS of the proxy face, 1.2 or later."""

    rules: ClassVar[tuple[Rule, ...]] = (_PAIR_OF_FILES,)

    mode: TlsModeField = TlsMode.PLAINTEXT
    """Plaintext: HTTP only. Optional: HTTP and HTTPS on the same port. Required: HTTPS only."""
    cert_file: NonEmptyStr | None = None
    """Path of the certificate and its chain in PEM, such as of a mounted Secret; read again when it changes. Left out,
    a self-signed one is made, which clients must not verify."""
    key_file: NonEmptyStr | None = None
    """Path of its private key in PEM, not encrypted."""


class PickerTls(ApiModel):
    """TLS of ext_proc and gRPC health, 1.2 or later."""

    rules: ClassVar[tuple[Rule, ...]] = (_PAIR_OF_FILES,)

    mode: TlsModeField = TlsMode.OPTIONAL
    """Plaintext: h2c only. Optional: with TLS and without on the same port. Required: with TLS only, but for health,
    since Kubernetes probes without."""
    cert_file: NonEmptyStr | None = None
    """Path of the certificate and its chain in PEM, such as of a mounted Secret; read again when it changes. Left out,
    a self-signed one is made, as GIE expects: gateways do not verify it."""
    key_file: NonEmptyStr | None = None
    """Path of its private key in PEM, not encrypted."""


class TlsSettings(ApiModel):
    """TLS of the gateway's own ports. The admin API is plaintext."""

    proxy: ProxyTls = Field(default_factory=ProxyTls)
    """Of the OpenAI API; plaintext by default."""
    picker: PickerTls = Field(default_factory=PickerTls)
    """Of ext_proc and gRPC health; by default clients may speak TLS or not."""


class Scrape(ApiModel):
    """How the engines' /metrics are read."""

    interval_s: PositiveFloat = 0.2
    """Seconds between two scrapes of one endpoint."""
    timeout_s: PositiveFloat = 1.0
    """Seconds until a scrape counts as failed."""
    failures_until_lost: PositiveInt = 5
    """Failed scrapes in a row after which an endpoint gets no requests, until one succeeds."""


class Limits(ApiModel):
    """Bounds on requests, and timeouts."""

    max_body_bytes: Annotated[PositiveInt, RESTARTS] = 16 * 1024 * 1024
    """Bytes of one request body with images, audio, video, files or embeddings in it; more is answered 413."""
    max_text_body_bytes: PositiveInt = 8 * 1024 * 1024
    """Bytes of one request body without those; more is answered 413. A million token ids fit."""
    max_bodies_bytes: PositiveInt = 1024 * 1024 * 1024
    """Memory of all request bodies that are read or served, as estimated; more are answered 503. Proxy face."""
    max_client_bodies_bytes: PositiveInt = 512 * 1024 * 1024
    """The same for one client, which is an address or an API key: each is counted; more are answered 429."""
    max_client_connections: PositiveInt = 10_000
    """Connections of one address; more are answered 429 and closed. With `trustedHops` there is no limit."""
    trusted_hops: NonNegativeInt = 0
    """Proxies in front of the gateway that append to X-Forwarded-For. Above 0 a client's address is the entry that the
    first of them wrote, so that clients behind them are told apart."""
    max_header_bytes: PositiveInt = 64 * 1024
    """Bytes of one request's headers; more is answered 431."""
    max_in_flight: PositiveInt = 10_000
    """Requests in flight in this gateway; more are answered 429."""
    max_retries: NonNegativeInt = 2
    """How often a request goes to another endpoint after one failed before the first token."""
    hold_s: NonNegativeFloat = 0.0
    """Seconds that a request waits for an endpoint to appear when there is none; 0 answers 503 at once."""
    connect_timeout_s: PositiveFloat = 5.0
    """Seconds to connect to an engine."""
    prefill_timeout_s: PositiveFloat = 300.0
    """Seconds until the answer to a prefill."""
    idle_timeout_s: PositiveFloat = 300.0
    """Seconds that an engine may send nothing in the middle of a stream."""
    deadline_s: PositiveFloat | None = None
    """Seconds from a request's last byte to the last byte of its answer, time in the gateway's queue included; then
    504, or an error event in a stream that has begun. Left out, there is no deadline but what a client or proxy asks
    for with `x-envoy-expected-rq-timeout-ms`. Of two the sooner one holds. For the proxy face."""
    request_timeout_s: PositiveFloat = 30.0
    """Seconds that a client may take for the headers of a request, and for each part of its body; 408."""
    body_timeout_s: PositiveFloat = 300.0
    """Seconds that a client may take for a whole body; 408."""
    min_body_bytes_per_s: NonNegativeInt = 8192
    """Bytes a second that a body must come at: each `requestTimeoutS` must bring as many, or its end; 408. 0 asks for
    any progress."""
    keep_alive_timeout_s: PositiveFloat = 75.0
    """Seconds that a client's connection may lie idle between two requests."""
    client_stall_timeout_s: PositiveFloat = 300.0
    """Seconds that a client may accept nothing of its answer; then the connection is closed and the engine stopped."""
    drain_grace_s: Annotated[DrainSeconds, RESTARTS] = 1.0
    """Seconds after SIGTERM in which new requests are still taken, until the cluster has noticed."""
    drain_timeout_s: Annotated[DrainSeconds, Field(gt=0), RESTARTS] = 300.0
    """Seconds that running requests get after that; new ones are answered 503. What still runs then is ended with an
    error that says so (`gateway-shutdown`)."""

    @property
    def longest_drain_s(self) -> float:
        """Seconds from SIGTERM to the end of the process, at most."""
        return self.drain_grace_s + self.drain_timeout_s + LAST_BYTES_S


class Health(ApiModel):
    """What the outcomes of engines' answers mean for who gets the next requests."""

    failures_in_a_row: PositiveInt = 5
    """Failed answers in a row that eject an endpoint, while others of its role serve; as many in all, if they are a far
    larger share of its answers than of the others'."""
    ejection_s: PositiveFloat = 10.0
    """Seconds of an endpoint's first ejection, after which it gets one request at a time until one succeeds. Each
    further one lasts twice as long, 300 s at most."""
    max_ejected_ratio: ShareRatio = 0.5
    """Share of a role's ready endpoints that may be ejected at a time, rounded down; one is always left. 0 ejects
    none."""
    retry_ratio: NonNegativeFloat = 0.2
    """Requests that may be sent to another endpoint, as a share of all requests; in 10 s, ten more than that. Requests
    that leave an ejected endpoint do not count, nor do those to which no connection came about. Those whose answers
    have begun may overdraw it, by as many as there are requests in flight."""


class Streams(ApiModel):
    """Streams of the proxy face."""

    rescue: bool = True
    """Whether a stream whose engine fails after the first token goes on at another one, from its tokens, and leaves an
    endpoint that drains where no rescheduling policy moves it. Only streams with all of their state in their tokens
    can."""


class Watch(ApiModel):
    """The progress watch of the proxy face: engines that owe something and are silent. An endpoint is suspected, and
    gets no new work, after `patience` times the silence that is expected of it, or after a floor if that is longer;
    after twice that time it is lost, and its requests go on elsewhere."""

    enabled: Annotated[bool, RESTARTS] = True
    """Whether engines are watched. If not, a silent one is noticed by its scrapes and by the timeouts of `limits`."""
    patience: Annotated[float, Field(ge=1)] = 3.0
    """How many times the expected silence is granted before an endpoint is suspected."""
    step_floor_s: PositiveFloat = 0.6
    """Least seconds until a suspicion while streams there get tokens."""
    prefill_floor_s: PositiveFloat = 1.0
    """Least seconds until a suspicion where only prefills are due; five times that before the first answer ever."""
    first_token_floor_s: PositiveFloat = 5.0
    """Least seconds until a suspicion where only first tokens after a hand-off are due: a first NIXL handshake takes
    some 5 s."""
    request_floor_s: PositiveFloat = 30.0
    """Least seconds until a single request without a token is sent elsewhere from an engine that serves others, and
    until an engine is lost by whose metrics requests run and no token is computed."""


class Adapters(ApiModel):
    """LoRA adapters that clients may put into `model`, beside the served names of the model. Endpoints that have an
    adapter at work, or room for it, are preferred, and no request goes to an endpoint that says it does not serve the
    name, however it is admitted."""

    names: Annotated[Seq[NonEmptyStr], Field(max_length=256)] = ()
    """Accepted names, whether an endpoint has loaded them or not; while none has, requests are answered 503."""
    discover: bool = False
    """Whether every adapter is accepted that an endpoint lists at its /v1/models. Others are answered 404."""


class Picker(ApiModel):
    """The picker face."""

    fallbacks: Annotated[int, Field(ge=0, le=8)] = 0
    """Endpoints that the destination names after the first one, in the order in which the proxy is to try them. Envoy
    does so with the `override_host` policy and a retry policy; with `ORIGINAL_DST` clusters it takes no list and
    answers 503. A ServingPool that is attached by Envoy Gateway's policies has 2 where this is left out."""


def _ports_of_ranks(field: str, attribute: str) -> Rule:
    return Rule(
        field=field,
        cel=f"self.{field} + self.ranks <= {LAST_PORT + 1}",
        message=f"the last rank's port, {field} + ranks - 1, must be {LAST_PORT} or less",
        holds=lambda self: getattr(self, attribute) + self.ranks <= LAST_PORT + 1,
    )


class KvEvents(ApiModel):
    """What engines report of their prefix caches: vLLM's KV events, over ZeroMQ. With them, policies that read cached
    prefixes know exactly which endpoint holds what of a prompt whose tokens are known; without, they believe that an
    endpoint holds what was routed there. A ServingPool that sets this starts its engines with the same ports and topic;
    others start them with `--kv-events-config`, `endpoint` tcp://*:PORT and `replay_endpoint` tcp://*:REPLAYPORT."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="replayPort",
            cel="self.port + self.ranks <= self.replayPort || self.replayPort + self.ranks <= self.port",
            message="the ports of all ranks, one after another, must differ from those of `port`",
            holds=lambda self: abs(self.port - self.replay_port) >= self.ranks,
        ),
        *(_ports_of_ranks(field, attribute) for field, attribute in (("port", "port"), ("replayPort", "replay_port"))),
    )

    enabled: bool = False
    """Whether engines are listened to. It costs processor time: docs/kv-events.md has how much."""
    port: Port = names.PORT_KV_EVENTS
    """Port on which engines publish; that of the first rank."""
    replay_port: Port = names.PORT_KV_REPLAY
    """Port on which they repeat what was missed; that of the first rank."""
    topic: Annotated[str, Field(max_length=256)] = ""
    """Prefix of the topics that are listened to; empty takes all."""
    ranks: Annotated[int, Field(ge=1, le=32)] = 1
    """Data-parallel ranks behind one endpoint; each adds its number to both ports, as in vLLM."""
    max_blocks: PositiveInt = 262_144
    """Blocks that one rank may report, some 200 bytes each; of one that reports more nothing is believed."""
    tokenize_wait_s: NonNegativeFloat = 0.05
    """Seconds that a request with a text prompt may wait for its token ids, which an engine's /tokenize gives; without
    them it is placed by what was routed. 0 asks for none."""


class Trust(ApiModel):
    """What the gateway believes of what a request says about itself. Change it only where an edge in front of the
    gateway sets or removes these headers and fields."""

    priorities: bool = False
    """Whether clients may set priorities, by the field `priority` and the header `x-vllm-priority`, in the gateway's
    queue and in engines. If not, both are removed, and every request has priority 0."""
    tenant_header: Annotated[str, Field(min_length=1, max_length=256, pattern=HEADER_NAME)] | None = None
    """Name of a header, in lower case, that says whose request it is: waiting requests of different tenants take turns.
    Left out, requests are told apart by API key (`authorization`, else `x-api-key`)."""


class Jwt(ApiModel):
    """JSON Web Tokens of one issuer, signed by RS256, ES256 or EdDSA. A token must have `exp`, and is not taken later
    than that, nor before its `nbf`, by more than 10 s."""

    jwks_file: NonEmptyStr
    """Path of the issuer's public keys as a JWK Set, such as of a mounted ConfigMap; read again when it changes."""
    issuer: NonEmptyStr
    """The `iss` that a token must have."""
    audiences: Annotated[Seq[NonEmptyStr], Field(min_length=1, max_length=16)]
    """A token must have one of these in its `aud`."""
    tenant_claim: NonEmptyStr = "sub"
    """Claim whose text names the tenant. A tenant of the same name in the keys file has its limits there."""
    max_in_flight: PositiveInt | None = None
    """Requests that may be in flight of a tenant that the keys file does not name. Left out, there is no limit."""
    tokens_per_minute: PositiveInt | None = None
    """Prompt and output tokens a minute of a tenant that the keys file does not name. Left out, there is no limit."""


class Keys(ApiModel):
    """Whose requests are served, on either face: who has a key of the file, or a token of the issuer. By default
    nothing is checked, and keys pass to the engines."""

    file: NonEmptyStr | None = None
    """Path of a file with tenants, the hashes of their API keys and their limits (see KeysFile), such as of a mounted
    Secret; read again when it changes. Left out, there are no API keys."""
    jwt: Jwt | None = None
    """Tokens that are taken beside keys, as `Authorization: Bearer TOKEN`. Left out, none."""

    @property
    def checked(self) -> bool:
        """Whether requests need a key or a token."""
        return self.file is not None or self.jwt is not None


class Admin(ApiModel):
    """The admin API."""

    token_file: NonEmptyStr | None = None
    """Path of a file with the bearer token for all but /metrics, /healthz, /readyz, the live page without its data, and
    what /ballast/v1/hold tells an address of its own requests. Read at each call; without a token in it everybody is
    refused. By default no token is asked for, and only loopback is answered."""
    decisions_kept: PositiveInt = 512
    """Decisions that /ballast/v1/decisions can look back on."""


class Traffic(ApiModel):
    """The traffic recorder: what `/ballast/v1/traffic` gives as a trace for `ballast simulate`. Whichever bound is
    reached first counts. The memory is 400 bytes a request and 8 a block at most: 16 MB by default."""

    kept_s: NonNegativeFloat = 900.0
    """Seconds for which a request that has ended is kept; 0 records nothing."""
    kept_requests: PositiveInt = 20_000
    """Requests that are kept at most, the last ones."""
    kept_blocks: NonNegativeInt = 1_000_000
    """Prefix blocks (64 tokens each) of these requests that are kept at most. 0 keeps none."""


class PodApi(ApiModel):
    """The pod API (docs/pod-api.md): how gateways and the agents of pods speak to each other."""

    token_file: NonEmptyStr | None = None
    """Path of a file with the fleet's tokens, one a line, such as of a mounted Secret; read again when it changes. Left
    out, there is no pod API: the gateway neither serves one nor asks agents or other gateways."""
    port: PortOrAny = names.PORT_POD_API
    """Port on which this gateway serves it, for the other gateways. 0 takes any free port."""


class KubernetesPeers(ApiModel):
    """The other gateways are the pods that a label selector finds; their annotation
    serving.ballast.dev/pod-api-port names the port. One of them leads by a Lease of that namespace."""

    namespace: NonEmptyStr
    """Namespace of the pods, and of the Lease."""
    selector: NonEmptyStr
    """Label selector, as in `kubectl get pods -l`."""
    lease: NonEmptyStr | None = None
    """Name of the Lease (coordination.k8s.io/v1). Left out, the first in order of name of the gateways that hear each
    other leads."""


class Peers(ApiModel):
    """The fleet's other gateways, whose requests count in this one's decisions. At most one of the two."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="kubernetes",
            cel="!(has(self.kubernetes) && has(self.addresses))",
            message="set at most one of kubernetes and addresses",
            holds=lambda self: self.kubernetes is None or not self.addresses,
        ),
    )

    addresses: Annotated[Seq[Address], Field(max_length=64)] = ()
    """`host:port` of each one's pod API; this gateway's own may be among them."""
    kubernetes: KubernetesPeers | None = None
    """Watch pods."""


class Tracing(ApiModel):
    """OpenTelemetry traces of requests (docs/tracing.md). The variables OTEL_* of the gateway's environment count where
    a field is left out, and for all that has no field: headers, TLS, batches, resource."""

    endpoint: Receiver | None = None
    """Base URL of an OTLP/HTTP receiver, such as http://collector:4318. Left out, OTEL_EXPORTER_OTLP_ENDPOINT says it,
    or http://localhost:4318 is taken."""
    protocol: TraceProtocol | None = None
    """What the receiver gets over HTTP; all take both. Left out, OTEL_EXPORTER_OTLP_PROTOCOL says it, or http/json is
    taken."""
    sample_ratio: ShareRatio | None = None
    """Share of the traces that begin here which are recorded. Left out, OTEL_TRACES_SAMPLER says it, or all are."""
    follow_clients: bool = True
    """Whether a request with a `traceparent` belongs to that trace and is recorded if its caller's is. Set it to false
    where clients are not trusted: each request then begins a trace of its own, by `sampleRatio`."""


class Logs(ApiModel):
    """What is logged beside messages."""

    requests: bool = True
    """One JSON line on standard output for each request that ended."""
    decisions_file: Annotated[NonEmptyStr | None, RESTARTS] = None
    """Path of a file to which each decision is appended as a JSON line; by default none is written."""


class ServedModel(ApiModel):
    """What clients may put into `model`."""

    served_names: Annotated[Seq[NonEmptyStr], Field(min_length=1, max_length=16)]
    """Accepted names; the first is what /v1/models lists first."""


class ClassObjective(ServiceLevelObjectiveSpec):
    """The objective of one class of requests, as in a ServiceLevelObjective's spec, with its name."""

    name: NonEmptyStr
    """Names the class in metrics, recorded traffic and the admin API."""


class CanarySettings(ApiModel):
    """A new revision of the engines that gets a share of the requests while it is watched."""

    revision: str
    """Of its endpoints: `revision` in an endpoints file, the label serving.ballast.dev/kv-revision of pods."""
    weight: ShareRatio
    """Share of the requests that it serves, from 0 to 1, chosen by a hash of the request's id. The others serve the
    rest. Where one side has no ready endpoints for both stages, the other serves all."""

    def to_core(self) -> Canary:
        """The core's value."""
        return Canary(self.revision, self.weight)


class GatewayTuning(ApiModel):
    """What may be set of a gateway by hand: in its file, and in a ServingPool under `gateway.settings`."""

    extra_paths: Annotated[Seq[Path], Field(max_length=64)] = ()
    """Paths that clients may ask engines for beside vLLM's inference API, each exactly as clients write it; on the
    proxy face with POST and a JSON object. All others are answered 404: engines have routes that put them to sleep or
    load files."""
    cors_origins: Annotated[Seq[Origin], Field(max_length=64)] = ()
    """Origins whose pages may call the proxy face from a browser (CORS), such as https://chat.example.org; "*" admits
    all. By default none. Cookies are never admitted."""
    scrape: Scrape = Field(default_factory=Scrape)
    """Reading of the engines' metrics."""
    limits: Limits = Field(default_factory=Limits)
    """Bounds on requests and bodies, and timeouts."""
    health: Health = Field(default_factory=Health)
    """Ejection of failing endpoints, and retries."""
    streams: Streams = Field(default_factory=Streams)
    """Whether streams go on at another endpoint when theirs fails."""
    watch: Watch = Field(default_factory=Watch)
    """When a silent engine is suspected, and when it is left."""
    adapters: Adapters = Field(default_factory=Adapters)
    """LoRA adapters that clients may ask for."""
    picker: Picker = Field(default_factory=Picker)
    """What pickers tell proxies."""
    kv_events: Annotated[KvEvents, RESTARTS] = Field(default_factory=KvEvents)
    """What engines report of their prefix caches."""
    tls: Annotated[TlsSettings, RESTARTS] = Field(default_factory=TlsSettings)
    """TLS towards clients and Envoy."""
    trust: Trust = Field(default_factory=Trust)
    """What is believed of clients."""
    keys: Annotated[Keys, RESTARTS] = Field(default_factory=Keys)
    """Whose requests are served, and how much of each tenant's. Proxy face."""
    admin: Annotated[Admin, RESTARTS] = Field(default_factory=Admin)
    """Who may ask the admin API, and what it remembers."""
    traffic: Traffic = Field(default_factory=Traffic)
    """How much of the last minutes' traffic is recorded."""
    logs: Logs = Field(default_factory=Logs)
    """Request and decision logs."""
    tracing: Annotated[Tracing | None, RESTARTS] = None
    """OpenTelemetry traces of requests, over OTLP/HTTP. Left out, there are none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""


class GatewaySettings(GatewayTuning):
    """Everything that a gateway needs to know."""

    model: ServedModel
    """The model."""
    face: Annotated[FaceField, RESTARTS] = Face.PROXY
    """Which faces are served."""
    policy: SchedulingPolicySpec = Field(default_factory=SchedulingPolicySpec)
    """What decides, as in a SchedulingPolicy's spec. Policies that the face cannot carry out are refused."""
    objectives: Annotated[Seq[ClassObjective], Field(max_length=16), KeyedBy("name")] = ()
    """What requests are measured against, and what their priority is if they say none. A request belongs to the first
    one whose `match` it meets; one that meets none is not measured."""
    canary: CanarySettings | None = None
    """Weighs one revision against all others, and counts both sides apart. Left out, the least busy revision serves."""
    startup_s: PositiveFloat | None = None
    """Seconds that an instance takes to start, as the operator has measured it. While there is none, a request that
    cannot wait gets what is left of it as Retry-After. Left out, a second or two."""
    connector: Annotated[Literal["NixlConnector"], RESTARTS] = "NixlConnector"
    """KV connector of the engines: decides how a prefill is handed to a decode."""
    discovery: Annotated[Discovery, RESTARTS]
    """Where endpoints come from."""
    profiles: dict[str, EngineProfile] = Field(default_factory=dict)
    """What the gateway believes of the hardware, by HardwareProfile name. An entry replaces the shipped profile of its
    name; the other shipped profiles are known, too."""
    listeners: Annotated[Listeners, RESTARTS] = Field(default_factory=Listeners)
    """Ports."""
    workers: Annotated[int, Field(ge=1, le=64), RESTARTS] = 1
    """Processes that share the ports of both faces. They hear each other as the gateways of a fleet do; each has
    `limits`, and those of tenants, of its own. With `podApi.tokenFile` their pod APIs are at `podApi.port` and on."""
    pod_api: Annotated[PodApi, RESTARTS] = Field(default_factory=PodApi)
    """Speaking with the agents of pods and with other gateways."""
    peers: Annotated[Peers, RESTARTS] = Field(default_factory=Peers)
    """The fleet's other gateways."""

    @model_validator(mode="after")
    def _check_that_the_face_can(self) -> Self:
        speaks = self.pod_api.token_file is not None
        if not speaks and (self.peers.addresses or self.peers.kubernetes is not None):
            reason = "other gateways are heard over the pod API: set podApi.tokenFile, too"
            raise_at("GatewaySettings", [("peers", "podApi", reason, None)])
        if found := misfits(self.policy.build(), self.face, agents=speaks):
            raise_at("GatewaySettings", [(f"policy.{each.part}", "policy", each.reason, None) for each in found])
        if self.workers > 1:
            if self.policy.partition is not None:
                reason = "plans cuts in one book, which workers do not share: set workers to 1, or leave it out"
                raise_at("GatewaySettings", [("policy.partition", "workers", reason, None)])
            if self.peers.kubernetes is not None:
                reason = "a pod has one pod API there, workers have one each: set workers to 1, or peers.addresses"
                raise_at("GatewaySettings", [("workers", "peers", reason, None)])
        return self

    def to_yaml(self) -> str:
        """The file's text; `load_settings` of it gives an equal value."""
        return yaml.safe_dump(self.dump(), sort_keys=False, allow_unicode=True)
