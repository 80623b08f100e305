"""Where does a request's time go, and which requests get none?"""

from __future__ import annotations

from typing import Final

from dashboards.panels import Dashboard, Panel, fleetwide, metric, quantile, ratio, total

_TTFT: Final = "ballast_gateway_time_to_first_token_seconds"
_TPOT: Final = "ballast_gateway_time_per_output_token_seconds"
_PART: Final = "ballast_gateway_time_to_first_token_part_seconds"
_PLACED: Final = "ballast_gateway_placed_prompt_tokens_total"

REQUEST_PATH: Final = Dashboard(
    "request-path",
    "Ballast / Request path",
    "Where does a request's time go, and which requests get none?",
    (
        (
            "Time to first token",
            (
                Panel(
                    "TTFT",
                    "Arrival to first token. Good: P99 below your objective. Bad: P99 far above the median: bursts or "
                    "a bad endpoint. Do: see the parts beside it.",
                    tuple((quantile(q, _TTFT), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "TTFT taken apart (P99)",
                    "Wait for capacity, prefill leg, and from its end to the first token. Good: prefill is the "
                    "largest. Bad: wait (all is full) or decode (hand-offs or decode batches). Do: add engines; for "
                    "decode compare KV and step times in Endpoints.",
                    ((quantile(0.99, _PART, by="part"), "{{part}}"),),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "TTFT, all requests",
                    "How many requests a second had which TTFT. Good: one narrow band. Bad: a second band above: one "
                    "class, pool or endpoint is slower. Do: compare models and objectives.",
                    ((total(f"{_TTFT}_bucket", by="le"), "{{le}}"),),
                    unit="s",
                    shape="heatmap",
                    width=8,
                ),
            ),
        ),
        (
            "Waiting and turned away",
            (
                Panel(
                    "Oldest waiting request",
                    "Age of the oldest by class. Good: below a tenth of its TTFT objective. Bad: near it. Do: add "
                    "engines; if one class alone waits, compare priorities.",
                    (
                        (
                            "max by (objective) (" + metric("ballast_gateway_objective_oldest_wait_seconds") + ")",
                            "{{objective}}",
                        ),
                    ),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "Expected wait",
                    "Until what waits now has been dispatched. Good: 0. Bad: near 0.1 to 0.2 `maxTtftS`: requests are "
                    "being shed. Do: add engines.",
                    ((fleetwide("ballast_gateway_expected_wait_seconds"), "{{serving_pool}}"),),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "Rejected and shed",
                    "Rejected requests a second by reason, and those of them that were one too many by cause. Good: 0. "
                    "Bad: any. Do: no-endpoints: see which pods are missing; backlog, waited: add engines; "
                    "upstream-failed: see the engines' logs.",
                    (
                        (total("ballast_gateway_rejections_total", by="reason"), "{{reason}}"),
                        (total("ballast_gateway_shed_total", by="cause"), "shed: {{cause}}"),
                    ),
                    unit="reqps",
                    width=8,
                ),
            ),
        ),
        (
            "Tokens and ends",
            (
                Panel(
                    "TPOT",
                    "Mean gap between tokens of a stream. Good: P99 below your objective. Bad: rises with load: decode "
                    "batches are too large. Do: add decode endpoints.",
                    tuple((quantile(q, _TPOT), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "E2E",
                    "Arrival to end of completed requests. It follows TTFT, TPOT and output lengths. Bad: rises while "
                    "both stay: outputs have grown longer. Do: nothing, or change the objective.",
                    tuple(
                        (quantile(q, "ballast_gateway_request_duration_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)
                    ),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "Prompt tokens that endpoints hold",
                    "Share of placed prompt tokens that are believed to be cached. Good: as high as your traffic "
                    "shares prompts. Bad: falls at the same traffic: caches are too small, or restarts. Do: compare "
                    "placements.",
                    ((ratio(total(_PLACED, 'prefix="hit"'), total(_PLACED)), "believed hits"),),
                    unit="percentunit",
                    most=1,
                    width=8,
                ),
                Panel(
                    "Requests in flight",
                    "Dispatched or waiting, by gateway, and those of others that the best informed one follows. Good: "
                    "follows the traffic. Bad: grows without end: arrivals exceed capacity. Do: add decode endpoints.",
                    (
                        (f"sum by (pod) ({metric('ballast_gateway_requests_in_flight')})", "{{pod}}"),
                        (fleetwide("ballast_gateway_requests_followed"), "{{serving_pool}}: followed"),
                    ),
                    width=8,
                ),
                Panel(
                    "Legs",
                    "Dispatched legs by stage, hand-offs, and requests that one role served whole. Good: hand-offs "
                    "follow prefills. Bad: hand-offs stay below (prefills fail), or a role is missing. Do: see "
                    "Endpoints.",
                    (
                        (total("ballast_gateway_dispatches_total", by="stage"), "{{stage}}"),
                        (total("ballast_gateway_handoffs_total"), "hand-offs"),
                        (total("ballast_gateway_fallback_dispatches_total", by="missing"), "no {{missing}}"),
                    ),
                    unit="reqps",
                    width=8,
                ),
                Panel(
                    "Cut prompts",
                    "Prompts planned to be cut between two endpoints, and those whose first part was used. Good: both "
                    "alike. Bad: used stays far below planned. Do: the gateway's log names engine and reason.",
                    ((total("ballast_gateway_cuts_total", by="outcome"), "{{outcome}}"),),
                    unit="reqps",
                    width=8,
                ),
            ),
        ),
    ),
)
