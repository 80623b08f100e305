"""Are predictions right, and are decisions good?"""

from __future__ import annotations

from typing import Final

from dashboards.panels import Dashboard, Panel, fleetwide, metric, quantile, ratio, total

_SCOPED: Final = "pool, role, quantity"

POLICY: Final = Dashboard(
    "policy",
    "Ballast / Policy",
    "Are predictions right, and are decisions good?",
    (
        (
            "Predicted and observed",
            (
                Panel(
                    "Error of predictions",
                    "Median absolute error of the last predictions of prefill times (TTFT without waiting) and of "
                    "decode steps. Good: below 0.2. Bad: above 0.3 for long. Do: calibrate the HardwareProfile "
                    "(`ballast profile`), and see whether others use the engines.",
                    ((fleetwide("ballast_gateway_prediction_error_ratio", by=_SCOPED), "{{pool}} {{quantity}}"),),
                    unit="percentunit",
                    width=8,
                ),
                Panel(
                    "Bias of predictions",
                    "Mean signed error: above 0, real times are longer than predicted. Good: near 0. Bad: one pool is "
                    "far from it: its profile is of other hardware. Do: calibrate it.",
                    (
                        (
                            f"avg by (pool, quantity) ({metric('ballast_gateway_prediction_bias_ratio')})",
                            "{{pool}} {{quantity}}",
                        ),
                    ),
                    unit="percentunit",
                    least=None,
                    width=8,
                ),
                Panel(
                    "Predicted step time and observed TPOT",
                    "Mean step time that is predicted for decode endpoints, and the median TPOT of streams. Good: "
                    "close together. Bad: TPOT is far above: prefills share the batch, or the link is slow. Do: "
                    "separate prefill, calibrate.",
                    (
                        (f"avg({metric('ballast_gateway_endpoint_step_seconds')})", "predicted step"),
                        (quantile(0.5, "ballast_gateway_time_per_output_token_seconds"), "TPOT p50"),
                    ),
                    unit="s",
                    width=8,
                ),
            ),
        ),
        (
            "Decisions",
            (
                Panel(
                    "Predicted, observed, and the best other",
                    "Mean time from dispatch to the end of a prefill: predicted, observed, and predicted for the best "
                    "other candidate. Good: observed near predicted, and not above the other. Bad: observed above the "
                    "other for long. Do: see the errors above: where predictions are off, calibrate; else compare "
                    "policies by `ballast simulate` on recorded traffic.",
                    (
                        (
                            total("ballast_gateway_judged_prefill_seconds_total", by="estimate")
                            + " / ignoring (estimate) group_left () "
                            + f"({total('ballast_gateway_judged_prefills_total')} > 0)",
                            "{{estimate}}",
                        ),
                    ),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "Regret of placements",
                    "Share of the time in prefills, queues included, that the best other candidate would have saved by "
                    "its prediction. Good: below 0.1. Bad: above 0.3 for long. Do: calibrate profiles; try another "
                    "placement. It is no forecast of what a change brings: the other endpoint would have been busier, "
                    "and the best of many predictions is too good on average.",
                    (
                        (
                            ratio(
                                total("ballast_gateway_regret_seconds_total"),
                                total("ballast_gateway_judged_prefill_seconds_total", 'estimate="observed"'),
                            ),
                            "regret",
                        ),
                    ),
                    unit="percentunit",
                    width=8,
                ),
                Panel(
                    "Placements by policy",
                    "Decisions a second by the policy that made them. Good: what you set. Bad: another one: settings "
                    "were not taken. Do: `/ballast/v1/settings`.",
                    ((total("ballast_gateway_placements_total", by="stage, policy"), "{{stage}}: {{policy}}"),),
                    unit="ops",
                    width=8,
                ),
                Panel(
                    "Time of a decision",
                    "Wall time of the Director. Good: P99 below 3 ms. Bad: above: more endpoints, a dearer policy, or "
                    "a machine short of processor time. Do: more gateways or CPU.",
                    tuple((quantile(q, "ballast_gateway_decision_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)),
                    unit="s",
                    width=8,
                ),
                Panel(
                    "Balance of decode",
                    "Longest predicted step time over the mean. Good: near 1 (on one kind of hardware). Bad: above 1.3 "
                    "for long: streams on that endpoint are slower than need be. Do: rescheduling, or another "
                    "placement.",
                    ((fleetwide("ballast_gateway_decode_step_max_to_mean_ratio"), "{{serving_pool}}"),),
                    width=8,
                ),
                Panel(
                    "Variance of decode steps",
                    "Over ready decode endpoints, in seconds squared. Good: constant or falling as traffic is. Bad: "
                    "grows at the same traffic. Do: as for the balance.",
                    ((fleetwide("ballast_gateway_decode_step_seconds_variance"), "{{serving_pool}}"),),
                    width=8,
                ),
                Panel(
                    "Moves of running decodes",
                    "By outcome. Good: moved, some ended. Bad: steadily more failed: targets are full or slow to "
                    "prefill. Do: the log has each reason.",
                    ((total("ballast_gateway_migrations_total", by="outcome"), "{{outcome}}"),),
                    unit="ops",
                    width=8,
                ),
                Panel(
                    "Pause of moved streams",
                    "From the cut to the target's first token. Good: about one step. Bad: P99 above 0.2 s: targets "
                    "compute much after the cut. Do: prefix caching on, fewer moves.",
                    tuple(
                        (quantile(q, "ballast_gateway_migration_pause_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)
                    ),
                    unit="s",
                    width=8,
                ),
            ),
        ),
        (
            "One view",
            (
                Panel(
                    "Gateways and agents",
                    "Leaders, and the agents and other gateways that each gateway hears. Good: one leader, all heard. "
                    "Bad: none or two for long. Do: `/ballast/v1/view` names who is not heard.",
                    (
                        (f"sum({metric('ballast_gateway_view_leads')})", "leaders"),
                        (f"min({metric('ballast_gateway_view_agents')})", "agents heard"),
                        (f"min({metric('ballast_gateway_view_peers')})", "gateways heard"),
                    ),
                ),
                Panel(
                    "Age of the view",
                    "Of what the most silent source said last. Good: below 1 s. Bad: above: an agent or a gateway is "
                    "busy or cut off. Do: `/ballast/v1/view` names it.",
                    ((f"max by (pod) ({metric('ballast_gateway_view_oldest_source_seconds')})", "{{pod}}"),),
                    unit="s",
                ),
            ),
        ),
    ),
)
