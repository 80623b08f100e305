"""What each plug-in of llm-d's router (v0.10) is in Ballast, and how far it is the same. docs/importing.md shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fit(StrEnum):
    """How far something maps."""

    EXACT = "exact"
    NEAR = "near"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Entry:
    """One type of plug-in."""

    kind: str
    """scorer, filter, picker, handler, decider, producer, admitter, detector, order, fairness, source or parser."""
    fit: Fit
    said: str
    """What it becomes, and how that differs; or why nothing."""
    placement: str | None = None
    """Of a scorer: the placement whose cost stands for one minus its score."""
    parameters: frozenset[str] = frozenset()
    """Its parameters that are read; others are named as not mapped."""


def _scorer(fit: Fit, said: str, placement: str | None = None) -> Entry:
    return Entry("scorer", fit, said, placement)


_UNCACHED = (
    "least-uncached-tokens: the tokens that are not cached there, with those that wait before them, in seconds; "
    "the score is the matched share of the prompt alone"
)
_NO_ATTRIBUTES: Final = "endpoints have no labels or attributes that placements read"

PLUGINS: Final[dict[str, Entry]] = {
    # --- scorers
    "queue-scorer": _scorer(
        Fit.NEAR, "vllm-jsq: 4 x waiting + running, as last reported; the score is of waiting alone", "vllm-jsq"
    ),
    "load-aware-scorer": _scorer(
        Fit.NEAR, "vllm-jsq: 4 x waiting + running; the score has a threshold of waiting requests", "vllm-jsq"
    ),
    "kv-cache-utilization-scorer": _scorer(
        Fit.NEAR,
        "least-tokens: tokens in flight by the gateway's books; the score is of the usage last scraped",
        "least-tokens",
    ),
    "running-requests-size-scorer": _scorer(
        Fit.NEAR,
        "least-requests-running: by the gateway's books; the score is of what was scraped",
        "least-requests-running",
    ),
    "active-request-scorer": _scorer(
        Fit.NEAR,
        "least-requests: requests in flight; idleThreshold and maxBusyScore have no counterpart",
        "least-requests",
    ),
    "token-load-scorer": _scorer(
        Fit.NEAR,
        "least-tokens: tokens in flight, relative to the others; the score is relative to a threshold",
        "least-tokens",
    ),
    "prefix-cache-scorer": _scorer(Fit.NEAR, _UNCACHED, "least-uncached-tokens"),
    "precise-prefix-cache-scorer": _scorer(
        Fit.NEAR, f"{_UNCACHED}; what is cached comes from KV events", "least-uncached-tokens"
    ),
    "latency-scorer": _scorer(
        Fit.NEAR, "predicted-ttft: by learned times; the score is of a trained model's TTFT and TPOT", "predicted-ttft"
    ),
    "lora-affinity-scorer": _scorer(
        Fit.NEAR,
        "always on, before the placement and within a bound on load; the score is added to the others and can lose",
    ),
    "no-hit-lru-scorer": _scorer(Fit.NONE, "cold requests go by load; equal costs take turns"),
    "context-length-aware": _scorer(Fit.NONE, _NO_ATTRIBUTES),
    "mm-embeddings-cache-scorer": _scorer(Fit.NONE, "encoder caches are not followed"),
    "session-affinity-scorer": _scorer(Fit.NONE, "no session is kept; a conversation finds its prefix"),
    "header-label-affinity-scorer": _scorer(Fit.NONE, _NO_ATTRIBUTES),
    "endpoint-attribute-scorer": _scorer(Fit.NONE, _NO_ATTRIBUTES),
    "topology-affinity-scorer": _scorer(Fit.NONE, "racks and zones are not known"),
    # --- filters
    "prefill-filter": Entry("filter", Fit.EXACT, "the role of an endpoint: prefill or flexible"),
    "decode-filter": Entry("filter", Fit.EXACT, "the role of an endpoint: decode or flexible"),
    "encode-filter": Entry("filter", Fit.NONE, "there is no encode role"),
    "label-selector-filter": Entry("filter", Fit.NONE, _NO_ATTRIBUTES + "; make a ServingPool for each set of pods"),
    "prefix-cache-affinity-filter": Entry(
        "filter", Fit.NONE, "least-uncached-tokens and ballast weigh hits against the queue instead"
    ),
    "slo-headroom-tier-filter": Entry("filter", Fit.NONE, "objectives are kept by admission (expected-ttft)"),
    "utilization-filter": Entry("filter", Fit.NONE, "limits are admission's"),
    "session-affinity-filter": Entry("filter", Fit.NONE, "no session is kept"),
    "topology-affinity-filter": Entry("filter", Fit.NONE, "racks and zones are not known"),
    "endpoint-attribute-filter": Entry("filter", Fit.NONE, _NO_ATTRIBUTES),
    # --- pickers
    "max-score-picker": Entry(
        "picker",
        Fit.EXACT,
        "the lowest cost wins; of equal ones the least recently chosen",
        parameters=frozenset({"maxNumOfEndpoints"}),
    ),
    "weighted-random-picker": Entry(
        "picker",
        Fit.NEAR,
        "the lowest cost wins; nothing is drawn at random",
        parameters=frozenset({"maxNumOfEndpoints"}),
    ),
    "random-picker": Entry(
        "picker",
        Fit.EXACT,
        "random: a hash of request and endpoint; scores do not count",
        parameters=frozenset({"maxNumOfEndpoints"}),
    ),
    # --- which profile runs
    "single-profile-handler": Entry("handler", Fit.EXACT, "prefill and decode are placed alike"),
    "disagg-profile-handler": Entry(
        "handler",
        Fit.NEAR,
        "prefill and decode placed by roles; prefill is placed first, and every prompt has both",
        parameters=frozenset({"profiles", "decodeProfile", "prefillProfile", "deciders"}),
    ),
    "pd-profile-handler": Entry(
        "handler", Fit.NEAR, "as disagg-profile-handler", parameters=frozenset({"decodeProfile", "prefillProfile"})
    ),
    "data-parallel-profile-handler": Entry("handler", Fit.NONE, "each rank is an endpoint of its own"),
    "header-profile-handler": Entry("handler", Fit.NONE, "no header chooses a policy"),
    "always-disagg-pd-decider": Entry("decider", Fit.EXACT, "every prompt is prefilled where the role is"),
    "prefix-based-pd-decider": Entry("decider", Fit.NONE, "short or cached prompts are disaggregated, too"),
    "always-disagg-multimodal-decider": Entry("decider", Fit.NONE, "there is no encode role"),
    # --- what scorers read
    "approx-prefix-cache-producer": Entry(
        "producer", Fit.NEAR, "built in: what was routed where, by blocks of 64 tokens; limits are Ballast's own"
    ),
    "precise-prefix-cache-producer": Entry("producer", Fit.NEAR, "kvEvents: vLLM's events, with replay after gaps"),
    "burst-prefix-cache-producer": Entry("producer", Fit.EXACT, "built in: a pick counts for the next one"),
    "token-producer": Entry(
        "producer", Fit.NEAR, "characters / 4, and with kvEvents the ids from an engine's /tokenize"
    ),
    "inflight-load-producer": Entry("producer", Fit.EXACT, "built in: the ledger"),
    "predicted-latency-producer": Entry("producer", Fit.NEAR, "built in: learned step and prefill times, no sidecar"),
    "p2p-source-producer": Entry("producer", Fit.NONE, "no KV is pulled from a third endpoint"),
    "session-id-producer": Entry("producer", Fit.NONE, "no session is kept"),
    "mm-embeddings-cache-producer": Entry("producer", Fit.NONE, "encoder caches are not followed"),
    # --- who waits and who is shed
    "latency-slo-admitter": Entry(
        "admitter", Fit.NEAR, "admission expected-ttft: sheds what cannot meet its objective"
    ),
    "probabilistic-admitter": Entry("admitter", Fit.NONE, "nothing is shed at random"),
    "utilization-detector": Entry(
        "detector",
        Fit.NEAR,
        "admission bounded by KV usage; the threshold of waiting requests and of stale metrics has no counterpart",
        parameters=frozenset({"kvCacheUtilThreshold"}),
    ),
    "concurrency-detector": Entry(
        "detector",
        Fit.NEAR,
        "admission bounded: requests for each endpoint and stage; tokens are not counted",
        parameters=frozenset({"maxConcurrency"}),
    ),
    "fcfs": Entry("order", Fit.EXACT, "queue fcfs"),
    "edf": Entry("order", Fit.NEAR, "queue edf: by TTFT objectives; in llm-d every request has the same TTL"),
    "slo-deadline": Entry("order", Fit.NEAR, "queue edf: by TTFT objectives of ServiceLevelObjectives, not of headers"),
    "round-robin": Entry("fairness", Fit.EXACT, "built in: tenants take turns"),
    "global-strict": Entry("fairness", Fit.NONE, "tenants always take turns"),
    "program-aware-fairness": Entry("fairness", Fit.NONE, "tenants take turns by requests"),
    # --- what is read of requests and engines
    "openai-parser": Entry("parser", Fit.EXACT, "built in"),
    "anthropic-parser": Entry("parser", Fit.EXACT, "built in: /v1/messages"),
    "vllmhttp-parser": Entry("parser", Fit.NONE, "/inference/v1/generate passes by extraPaths only, and is not read"),
    "vllmgrpc-parser": Entry("parser", Fit.NONE, "engines are asked over HTTP"),
    "sglanghttp-parser": Entry("parser", Fit.NONE, "engines are vLLM"),
    "vertexai-parser": Entry("parser", Fit.NONE, "not read"),
    "passthrough-parser": Entry("parser", Fit.NEAR, "paths of extraPaths are placed without being read"),
    "metrics-data-source": Entry("source", Fit.EXACT, "built in: vLLM's /metrics"),
    "core-metrics-extractor": Entry("source", Fit.EXACT, "built in"),
    "models-data-source": Entry("source", Fit.EXACT, "built in: /v1/models, adapters included"),
}
