"""Is the promise kept, and if not, what holds the fleet back?"""

from __future__ import annotations

from typing import Final

from dashboards.panels import Dashboard, Panel, fleetwide, metric, rate, ratio, total

_BURN: Final = tuple(
    (
        f"{metric(f'ballast:objective_error_ratio:rate{window}')} / {metric('ballast:objective_error_budget:ratio')}",
        f"{{{{objective}}}} {window}",
    )
    for window in ("5m", "1h", "6h")
)
_JUDGED: Final = "ballast_gateway_objective_requests_total"
_KV: Final = metric("ballast_gateway_endpoint_kv_usage_ratio", 'source="seen"', 'role!="prefill"')
_PARTS: Final = "ballast_gateway_time_to_first_token_part_seconds_sum"

FLEET: Final = Dashboard(
    "fleet",
    "Ballast / Fleet",
    "Is the promise kept, and if not, what holds the fleet back?",
    (
        (
            "Objectives",
            (
                Panel(
                    "SLO attainment, last hour",
                    "Share of requests that met every threshold of their class. Good: at or above the target. Bad: "
                    "below it. Do: see beside it which threshold is missed, and below what holds the fleet back.",
                    (
                        (f"1 - {metric('ballast:objective_error_ratio:rate1h')}", "{{serving_pool}} {{objective}}"),
                        (f"1 - {metric('ballast:objective_error_budget:ratio')}", "target {{objective}}"),
                    ),
                    unit="percentunit",
                    most=1,
                    width=8,
                ),
                Panel(
                    "Burn rate of the error budget",
                    "How many times faster than allowed requests miss their objective; 1 spends just the budget. Good: "
                    "below 1. Bad: above 6 for hours or above 14 for an hour, when alerts fire. Do: see the runbook of "
                    "BallastSloFastBurn.",
                    _BURN,
                    width=8,
                ),
                Panel(
                    "Missed, by threshold",
                    "Share of requests outside each threshold. Good: below 1 less the target. Bad: ttft (prefill or "
                    "waiting), tpot (decode batches are too large), e2e alone (outputs are longer than the objective "
                    "allows). Do: add endpoints of that role, or change the objective.",
                    (
                        (
                            ratio(
                                total(_JUDGED, 'result="outside"', by="objective, threshold"),
                                total(_JUDGED, 'result=~"within|outside"', by="objective, threshold"),
                            ),
                            "{{objective}} {{threshold}}",
                        ),
                    ),
                    unit="percentunit",
                    width=8,
                ),
            ),
        ),
        (
            "Traffic",
            (
                Panel(
                    "Requests by outcome",
                    "Requests a second that ended. Good: completed (routed, where Envoy shows no end). Bad: rejected "
                    "and failed (ours), a growing share of cancelled (clients lose patience). Do: see Request path.",
                    ((total("ballast_gateway_requests_total", by="outcome"), "{{outcome}}"),),
                    unit="reqps",
                    shape="stacked",
                    width=8,
                ),
                Panel(
                    "Tokens",
                    "Prompt and output tokens a second. Good: any rate that is served. Bad: their ratio changes for "
                    "good: it decides the right P:D ratio. Do: ask `ballast recommend` with recorded traffic.",
                    (
                        (total("ballast_gateway_prompt_tokens_total"), "prompt"),
                        (total("ballast_gateway_output_tokens_total"), "output"),
                    ),
                    width=8,
                ),
                Panel(
                    "Ready endpoints",
                    "Ready endpoints by role: the P:D ratio as it is. Good: what the ServingPool asks for. Bad: fewer. "
                    "Do: `kubectl describe servingpool`; see Endpoints for their health.",
                    (
                        (
                            "sum by (role) ("
                            + fleetwide("ballast_gateway_endpoints", 'state="ready"', by="pool, role")
                            + ")",
                            "{{role}}",
                        ),
                    ),
                    width=8,
                ),
            ),
        ),
        (
            "What holds us back",
            (
                Panel(
                    "Where the time to first token goes",
                    "Share of all TTFT spent waiting for capacity, in prefill, and from there to the first token. "
                    "Good: mostly prefill. Bad: wait (everything is full) or decode (hand-offs are slow, or decode "
                    "endpoints are crowded). Do: add engines; for decode add decode endpoints and look at the link.",
                    (
                        (
                            f"sum by (part) ({rate(_PARTS)}) / on() group_left() (sum({rate(_PARTS)}) > 0)",
                            "{{part}}",
                        ),
                    ),
                    unit="percentunit",
                    shape="stacked",
                    width=8,
                ),
                Panel(
                    "KV cache of decode endpoints",
                    "Mean and largest share of KV cache in use. Good: below 0.8. Bad: above 0.9: preemptions are near "
                    "and requests queue inside of engines. Do: add decode endpoints or lower `--max-num-seqs`.",
                    (
                        (f"avg({_KV})", "mean"),
                        (f"max({_KV})", "largest"),
                    ),
                    unit="percentunit",
                    most=1,
                    width=8,
                ),
                Panel(
                    "Prefill backlog",
                    "Prompt tokens that prefill endpoints have still to compute, a mean of them. Good: falls back to 0 "
                    "again and again. Bad: grows. Do: add prefill endpoints.",
                    (
                        (
                            "avg by (pool) ("
                            + fleetwide(
                                "ballast_gateway_endpoint_uncached_tokens", 'role!="decode"', by="pool, endpoint"
                            )
                            + ")",
                            "{{pool}}",
                        ),
                    ),
                    width=8,
                ),
                Panel(
                    "Waiting requests by class",
                    "Requests that wait for capacity. Good: 0 but for bursts. Bad: above 0 for minutes. Do: add "
                    "engines; if one class waits alone, compare priorities.",
                    (
                        (
                            "sum by (objective) (" + metric("ballast_gateway_objective_waiting_requests") + ")",
                            "{{objective}}",
                        ),
                    ),
                ),
                Panel(
                    "Faults",
                    "Failed legs, retries, rescued streams and shed requests a second. Good: 0. Bad: steady growth. "
                    "Do: failed legs: see the engine that Endpoints shows ejected; shed: add engines.",
                    (
                        (total("ballast_gateway_failed_legs_total"), "failed legs"),
                        (total("ballast_gateway_retries_total"), "retries"),
                        (total("ballast_gateway_rescues_total"), "rescues"),
                        (total("ballast_gateway_shed_total"), "shed"),
                    ),
                    unit="reqps",
                ),
            ),
        ),
        (
            "Tenants, where keys are checked",
            (
                Panel(
                    "Tokens by tenant",
                    "Prompt and output tokens a second of requests that have ended, by the names of the keys file; "
                    "without a name: tenants of tokens. Good: any rate that is within limits. Bad: one takes most, and "
                    "others wait. Do: give it a limit in the keys file.",
                    (
                        (
                            f"{total('ballast_gateway_tenant_prompt_tokens_total', by='tenant')} + "
                            f"{total('ballast_gateway_tenant_output_tokens_total', by='tenant')}",
                            "{{tenant}}",
                        ),
                    ),
                    shape="stacked",
                ),
                Panel(
                    "Refused by tenant",
                    "Requests a second that were let in, and that were refused for a limit of the tenant. Good: none "
                    "refused. Bad: refused for minutes: the tenant has all of its share. Do: raise its limit, or have "
                    "its client wait as Retry-After says.",
                    (
                        (total("ballast_gateway_tenant_requests_total", by="tenant"), "{{tenant}} let in"),
                        (
                            total("ballast_gateway_tenant_refused_total", by="tenant, limit"),
                            "{{tenant}} refused: {{limit}}",
                        ),
                    ),
                    unit="reqps",
                ),
            ),
        ),
    ),
)
