"""`/metrics` as vLLM 0.32 writes it: the same names, labels and buckets (v1/metrics/loggers.py, v1/metrics/buckets.py).

Gauges are read from the engine when scraped. Times are wall-clock seconds, whatever the time scale.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.utils import floatToGoString

from ballast_sim.engine import FinishReason, RequestStats
from ballast_sim.engine.engine import Engine

LATENCY_BUCKETS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80),
)
ITERATION_BUCKETS = tuple(2**power for power in (0, *range(3, 15)))
NIXL_TIME_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
NIXL_BYTES_BUCKETS = tuple(2**power for power in range(11, 34, 2))
NIXL_DESCRIPTOR_BUCKETS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)


def token_buckets(longest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to the model's length."""
    steps = (mantissa * 10**power for power in range(12) for mantissa in (1, 2, 5))
    return tuple(step for step in steps if step <= longest)


class Histogram:
    """Cumulative buckets, as Prometheus has them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are upper limits, ascending."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """What vLLM's stat logger keeps, for one engine."""

    def __init__(self, model: str, max_model_len: int, created_s: float, nixl: bool) -> None:
        """`created_s` is the UNIX time for the `_created` samples."""
        tokens = token_buckets(max_model_len)
        self._lora_states: dict[tuple[str, ...], float] = {}
        self._labels = f'engine="0",model_name="{_escape(model)}"'
        self._model = _escape(model)
        self._created_s = created_s
        self._nixl = nixl
        self.time_to_first_token = Histogram(TTFT_BUCKETS)
        self.inter_token_latency = Histogram(ITL_BUCKETS)
        self.time_per_output_token = Histogram(ITL_BUCKETS)
        self.e2e = Histogram(LATENCY_BUCKETS)
        self.queue = Histogram(LATENCY_BUCKETS)
        self.inference = Histogram(LATENCY_BUCKETS)
        self.prefill = Histogram(LATENCY_BUCKETS)
        self.decode = Histogram(LATENCY_BUCKETS)
        self.prompt_tokens = Histogram(tokens)
        self.generation_tokens = Histogram(tokens)
        self.max_generation_tokens = Histogram(tokens)
        self.params_max_tokens = Histogram(tokens)
        self.params_n = Histogram((1, 2, 5, 10, 20))
        self.preemptions = Histogram((1, 2, 3, 4, 5, 10, 20))
        self.prefill_computed = Histogram(tokens)
        self.iteration_tokens = Histogram(ITERATION_BUCKETS)
        self.nixl_time = Histogram(NIXL_TIME_BUCKETS[1:])
        self.nixl_post_time = Histogram(NIXL_TIME_BUCKETS)
        self.nixl_bytes = Histogram(NIXL_BYTES_BUCKETS)
        self.nixl_descriptors = Histogram(NIXL_DESCRIPTOR_BUCKETS)
        self.nixl_failed_transfers = 0
        self.nixl_failed_notifications = 0
        self.nixl_late_notifications = 0
        self.generated = 0
        self.success = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.rejections = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        self.prompt_sources = {"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 0}

    def prefill_done(self, stats: RequestStats) -> None:
        """A request's first token is out: its prompt counts as processed."""
        sources = self.prompt_sources
        sources["local_compute"] += stats.input_tokens - stats.cached_tokens
        sources["local_cache_hit"] += stats.cached_tokens - stats.pulled_tokens
        sources["external_kv_transfer"] += stats.pulled_tokens

    def request_done(
        self,
        stats: RequestStats,
        *,
        reason: FinishReason,
        at_s: float,
        max_tokens: int,
        scale: float,
        by_client: bool,
    ) -> None:
        """A request ended. Client disconnects are not counted as aborted requests, as in vLLM."""
        if not by_client:
            self.success[reason.value] += 1
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            return
        self.prompt_tokens.observe(stats.input_tokens)
        self.generation_tokens.observe(stats.output_tokens)
        self.max_generation_tokens.observe(stats.output_tokens)
        self.params_max_tokens.observe(max_tokens)
        self.params_n.observe(1)
        self.preemptions.observe(stats.preemptions)
        self.prefill_computed.observe(stats.input_tokens - stats.cached_tokens)
        self.e2e.observe((at_s - stats.arrival_s) * scale)
        if stats.scheduled_s is None or stats.first_token_s is None:
            return
        self.queue.observe((stats.scheduled_s - stats.arrival_s) * scale)
        self.prefill.observe((stats.first_token_s - stats.scheduled_s) * scale)
        self.decode.observe((at_s - stats.first_token_s) * scale)
        self.inference.observe((at_s - stats.scheduled_s) * scale)
        if stats.output_tokens > 1:
            self.time_per_output_token.observe((at_s - stats.first_token_s) * scale / (stats.output_tokens - 1))

    # -- exposition --------------------------------------------------------------------------------------------------

    def render(self, engine: Engine) -> bytes:
        """The exposition text."""
        lines: list[str] = []
        lines += self._gauges(engine)
        lines += self._counters(engine)
        for name, histogram in self._histograms():
            lines += self._histogram(name, histogram)
        return ("\n".join(lines) + "\n").encode()

    def _gauges(self, engine: Engine) -> Iterable[str]:
        load, config = engine.load(), engine.config
        yield from self._gauge("num_requests_running", [("", load.running)])
        yield from self._gauge("num_requests_waiting", [("", load.waiting)])
        by_reason = [('reason="capacity"', load.waiting - load.deferred), ('reason="deferred"', load.deferred)]
        yield from self._gauge("num_requests_waiting_by_reason", by_reason)
        states = [(f'sleep_state="{state}"', int(state == "awake")) for state in ("awake", "weights_offloaded")]
        yield from self._gauge("engine_sleep_state", [*states, ('sleep_state="discard_all"', 0)])
        yield from self._gauge("kv_cache_usage_perc", [("", load.kv_usage_ratio)])
        tokens = config.kv_blocks * config.block_size
        facts: dict[str, object] = {
            "block_size": config.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": config.prefix_caching,
            "hash_block_size": config.block_size,
            "kv_cache_max_concurrency": round(tokens / config.max_model_len, 2),
            "kv_cache_size_tokens": tokens,
            "num_gpu_blocks": config.kv_blocks,
            "prefix_caching_hash_algo": "sha256",
        }
        labels = ",".join(f'{name}="{value}"' for name, value in facts.items())
        yield "# HELP vllm:cache_config_info cache_config_info"
        yield "# TYPE vllm:cache_config_info gauge"
        yield f'vllm:cache_config_info{{{labels},engine="0"}} 1.0'
        if config.max_loras:
            yield from self._loras(engine)
        if self._nixl:
            stages = [(f'stage="{stage}"', count) for stage, count in engine.transfer_stages().items()]
            yield from self._gauge("num_requests_kv_fetch_by_stage", stages)

    def _loras(self, engine: Engine) -> Iterable[str]:
        """One sample for each state that there has been: its value is when that was last so."""
        state, most = engine.scheduler.state, engine.config.max_loras
        running = {request.spec.adapter for request in state.running}
        waiting = {request.spec.adapter for queue in (state.waiting, state.skipped_waiting) for request in queue}
        listed = (",".join(sorted(filter(None, each))) for each in (running, waiting))
        self._lora_states[tuple(map(_escape, listed))] = time.time()
        yield "# HELP vllm:lora_requests_info Running stats on lora requests."
        yield "# TYPE vllm:lora_requests_info gauge"
        for (runs, waits), at_s in self._lora_states.items():
            labels = f'max_lora="{most}",running_lora_adapters="{runs}",waiting_lora_adapters="{waits}"'
            yield f"vllm:lora_requests_info{{{labels}}} {at_s!r}"

    def _counters(self, engine: Engine) -> Iterable[str]:
        counters, sources = engine.scheduler.state.counters, self.prompt_sources
        yield from self._counter("prefix_cache_queries", [("", counters.prefix_queries)])
        yield from self._counter("prefix_cache_hits", [("", counters.prefix_hits)])
        yield from self._counter("external_prefix_cache_queries", [("", counters.external_queries)])
        yield from self._counter("external_prefix_cache_hits", [("", counters.external_hits)])
        yield from self._counter("mm_cache_queries", [("", 0)])
        yield from self._counter("mm_cache_hits", [("", 0)])
        yield from self._counter("num_preemptions", [("", counters.preemptions)])
        yield from self._counter("prompt_tokens", [("", sum(sources.values()))])
        by_source = [(f'source="{source}"', count) for source, count in sources.items()]
        yield from self._counter("prompt_tokens_by_source", by_source)
        cached = sources["local_cache_hit"] + sources["external_kv_transfer"]
        yield from self._counter("prompt_tokens_cached", [("", cached)])
        tiers = dict.fromkeys(("device", "host", "p2p", "disk", "external_unspecified"), 0)
        tiers["device"], tiers["p2p"] = counters.prefix_hits, counters.external_hits
        yield from self._counter("prompt_tokens_cached_by_source", [(f'source="{t}"', n) for t, n in tiers.items()])
        yield from self._counter("generation_tokens", [("", self.generated)])
        success = [(f'finished_reason="{reason}"', count) for reason, count in self.success.items()]
        yield from self._counter("request_success", success)
        rejections = [(f'reason="{reason}"', count) for reason, count in self.rejections.items()]
        yield from self._family("admission_rejections", "counter", rejections, f'model_name="{self._model}"')
        if self._nixl:
            yield from self._counter("nixl_num_failed_transfers", [("", self.nixl_failed_transfers)])
            yield from self._counter("nixl_num_failed_notifications", [("", self.nixl_failed_notifications)])
            yield from self._counter("nixl_num_kv_expired_reqs", [("", engine.expired_leases)])
            yield from self._counter("nixl_num_notifications_after_expiry", [("", self.nixl_late_notifications)])

    def _histograms(self) -> Iterable[tuple[str, Histogram]]:
        yield "request_prompt_tokens", self.prompt_tokens
        yield "request_generation_tokens", self.generation_tokens
        yield "iteration_tokens_total", self.iteration_tokens
        yield "request_max_num_generation_tokens", self.max_generation_tokens
        yield "request_params_n", self.params_n
        yield "request_params_max_tokens", self.params_max_tokens
        yield "time_to_first_token_seconds", self.time_to_first_token
        yield "inter_token_latency_seconds", self.inter_token_latency
        yield "request_time_per_output_token_seconds", self.time_per_output_token
        yield "e2e_request_latency_seconds", self.e2e
        yield "request_queue_time_seconds", self.queue
        yield "request_inference_time_seconds", self.inference
        yield "request_prefill_time_seconds", self.prefill
        yield "request_decode_time_seconds", self.decode
        yield "request_num_preemptions", self.preemptions
        yield "request_prefill_kv_computed_tokens", self.prefill_computed
        if self._nixl:
            yield "nixl_xfer_time_seconds", self.nixl_time
            yield "nixl_post_time_seconds", self.nixl_post_time
            yield "nixl_bytes_transferred", self.nixl_bytes
            yield "nixl_num_descriptors", self.nixl_descriptors

    def _gauge(self, name: str, samples: Sequence[tuple[str, float]]) -> Iterable[str]:
        yield f"# HELP vllm:{name} {name}"
        yield f"# TYPE vllm:{name} gauge"
        for labels, value in samples:
            yield f"vllm:{name}{{{self._join(labels)}}} {float(value)!r}"

    def _counter(self, name: str, samples: Sequence[tuple[str, float]]) -> Iterable[str]:
        return self._family(name, "counter", samples, self._labels)

    def _family(self, name: str, kind: str, samples: Sequence[tuple[str, float]], common: str) -> Iterable[str]:
        yield f"# HELP vllm:{name}_total {name}"
        yield f"# TYPE vllm:{name}_total {kind}"
        for labels, value in samples:
            yield f"vllm:{name}_total{{{_both(common, labels)}}} {float(value)!r}"
        yield f"# HELP vllm:{name}_created {name}"
        yield f"# TYPE vllm:{name}_created gauge"
        for labels, _ in samples:
            yield f"vllm:{name}_created{{{_both(common, labels)}}} {self._created_s!r}"

    def _histogram(self, name: str, histogram: Histogram) -> Iterable[str]:
        yield f"# HELP vllm:{name} {name}"
        yield f"# TYPE vllm:{name} histogram"
        total = 0
        limits = [*(_bound(bound) for bound in histogram.bounds), "+Inf"]
        for limit, count in zip(limits, histogram.counts, strict=True):
            total += count
            yield f'vllm:{name}_bucket{{{self._labels},le="{limit}"}} {float(total)!r}'
        yield f"vllm:{name}_count{{{self._labels}}} {float(total)!r}"
        yield f"vllm:{name}_sum{{{self._labels}}} {histogram.total!r}"
        yield f"# HELP vllm:{name}_created {name}"
        yield f"# TYPE vllm:{name}_created gauge"
        yield f"vllm:{name}_created{{{self._labels}}} {self._created_s!r}"

    def _join(self, labels: str) -> str:
        return _both(self._labels, labels)


def _bound(value: float) -> str:
    """As prometheus_client writes it: 2.097152e+06."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _both(common: str, labels: str) -> str:
    return f"{common},{labels}" if labels else common


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
