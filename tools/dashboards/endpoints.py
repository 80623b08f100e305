"""Which endpoint is overloaded, slow or bad?"""

from __future__ import annotations

from typing import Final

from dashboards.panels import Dashboard, Panel, fleetwide, rate, total

_EACH: Final = "pool, endpoint"
_BELIEVED: Final = fleetwide("ballast_gateway_endpoint_requests", 'source="believed"', by=_EACH)
_PREEMPTED: Final = rate("ballast_gateway_endpoint_preemptions_total")

ENDPOINTS: Final = Dashboard(
    "endpoints",
    "Ballast / Endpoints",
    "Which endpoint is overloaded, slow or bad?",
    (
        (
            "Load",
            (
                Panel(
                    "Load by endpoint",
                    "Requests that gateways have on each endpoint. Good: one colour within a pool. Bad: one row stands "
                    "out. Do: see its health below, and why it is chosen: `ballast explain`.",
                    (
                        (
                            _BELIEVED,
                            "{{endpoint}}",
                        ),
                    ),
                    shape="states",
                    width=24,
                ),
                Panel(
                    "Requests seen",
                    "Running and waiting requests by the endpoints' own metrics. Good: as in the panel above. Bad: "
                    "more than gateways have: others send requests, too. Do: find them.",
                    ((fleetwide("ballast_gateway_endpoint_requests", 'source="seen"', by=_EACH), "{{endpoint}}"),),
                ),
                Panel(
                    "Waiting inside of engines",
                    "Good: 0 on decode endpoints. Bad: above 0 there: KV cache or batch are full; on one prefill "
                    "endpoint only: it is slow. Do: add endpoints of that role.",
                    ((fleetwide("ballast_gateway_endpoint_waiting_requests", by=_EACH), "{{endpoint}}"),),
                ),
            ),
        ),
        (
            "Decode",
            (
                Panel(
                    "Predicted step time",
                    "Time of a decode step at the load now, which each of its streams waits for every token. Good: "
                    "below the TPOT objective, all alike on one hardware. Bad: one far above: it is overloaded. Do: "
                    "turn on rescheduling, or add endpoints.",
                    ((fleetwide("ballast_gateway_endpoint_step_seconds", by=_EACH), "{{endpoint}}"),),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "KV cache in use, seen",
                    "By the endpoints' own metrics, blocks for reuse included where the engine counts them. Good: "
                    "below 0.8. Bad: above 0.9. Do: add decode endpoints.",
                    (
                        (
                            fleetwide("ballast_gateway_endpoint_kv_usage_ratio", 'source="seen"', by=_EACH),
                            "{{endpoint}}",
                        ),
                    ),
                    unit="percentunit",
                    most=1,
                    width=8,
                ),
                Panel(
                    "KV cache in use, believed",
                    "By the gateways' books and the HardwareProfile. Good: near what is seen. Bad: far from it: the "
                    "profile's `kvTokens` is wrong, or others use the engine. Do: measure with `ballast profile`.",
                    (
                        (
                            fleetwide("ballast_gateway_endpoint_kv_usage_ratio", 'source="believed"', by=_EACH),
                            "{{endpoint}}",
                        ),
                    ),
                    unit="percentunit",
                    width=8,
                ),
                Panel(
                    "Preemptions",
                    "Requests that engines threw out of their batch, a second. Good: 0. Bad: any: they compute their "
                    "tokens again. Do: add decode endpoints or lower `--max-num-seqs`.",
                    (
                        (
                            f"max by (namespace, serving_pool, {_EACH}) ({_PREEMPTED})",
                            "{{endpoint}}",
                        ),
                    ),
                    width=8,
                ),
                Panel(
                    "Moves ordered",
                    "Running decodes that were ordered out of an endpoint (above) or into it. Good: few, from full "
                    "ones to emptier ones. Bad: the same endpoints both ways: rounds are too eager. Do: raise the "
                    "policy's least gain.",
                    (
                        (
                            total("ballast_gateway_endpoint_moves_total", by="endpoint, direction"),
                            "{{endpoint}} {{direction}}",
                        ),
                    ),
                    width=8,
                ),
                Panel(
                    "Prompt tokens to compute",
                    "Good: falls back to 0 again and again. Bad: grows on all prefill endpoints, or on one, which is "
                    "slow then. Do: add prefill endpoints; look at that one.",
                    ((fleetwide("ballast_gateway_endpoint_uncached_tokens", by=_EACH), "{{endpoint}}"),),
                    width=8,
                ),
            ),
        ),
        (
            "Health",
            (
                Panel(
                    "Endpoints by state",
                    "What discovery and scrapes say. Good: ready. Bad: unreachable (scrapes fail), draining for long. "
                    "Do: `kubectl get pods`, the gateway's `/ballast/v1/endpoints` has the reason.",
                    (
                        (
                            f"sum by (role, state) ({fleetwide('ballast_gateway_endpoints', by='pool, role, state')})",
                            "{{role}} {{state}}",
                        ),
                    ),
                    width=8,
                ),
                Panel(
                    "Ejected and probed endpoints",
                    "Ready endpoints that get no new requests, as too many of theirs failed. Good: none. Bad: for "
                    "longer than a minute: one stays bad. Do: `/ballast/v1/endpoints` has the reason; restart the pod.",
                    (
                        (
                            fleetwide("ballast_gateway_endpoint_health", 'state!="healthy"', by="role, state"),
                            "{{role}} {{state}}",
                        ),
                    ),
                    width=8,
                ),
                Panel(
                    "Failed legs and ejections",
                    "What engines did to requests, and endpoints that were ejected for it. Good: 0. Bad: broke or "
                    "silent: engines die or hang; refused, busy: they are asked what they cannot do. Do: see their "
                    "logs.",
                    (
                        (total("ballast_gateway_failed_legs_total", by="fault"), "{{fault}}"),
                        (total("ballast_gateway_ejections_total", by="cause"), "ejected: {{cause}}"),
                    ),
                    unit="reqps",
                    width=8,
                ),
                Panel(
                    "Scrapes",
                    "Failed scrapes a second, and the age of the oldest observation. Good: 0, and below twice "
                    "`scrape.intervalS`. Bad: engines or gateways are short of processor time. Do: raise "
                    "`scrape.timeoutS`, give them more.",
                    (
                        (total("ballast_gateway_scrape_failures_total", by="pool"), "failures: {{pool}}"),
                        (fleetwide("ballast_gateway_observation_age_seconds", by="pool"), "age (s): {{pool}}"),
                    ),
                ),
                Panel(
                    "The watch",
                    "Endpoints that began to be suspected of hanging, or were lost for it, and legs that were left. "
                    "Good: none. Bad: suspected and steady in turn: an engine pauses. Do: raise `watch.patience`, or "
                    "find out why.",
                    (
                        (total("ballast_gateway_watch_changes_total", by="pulse"), "{{pulse}}"),
                        (total("ballast_gateway_legs_left_total"), "legs left"),
                    ),
                ),
            ),
        ),
    ),
)
