"""Does the operator keep up, and what does it say of each ServingPool?"""

from __future__ import annotations

from typing import Final

from dashboards.panels import Dashboard, Panel, metric, total

_CONDITION: Final = "ballast_operator_condition"

OPERATOR: Final = Dashboard(
    "operator",
    "Ballast / Operator",
    "Does the operator keep up, and what does it say of each ServingPool?",
    (
        (
            "ServingPools",
            (
                Panel(
                    "Conditions",
                    "The status that each condition has, with its reason. Good: Available True, Degraded False, SLOMet "
                    "True. Bad: anything else. Do: `kubectl describe servingpool` says which field to edit.",
                    (
                        (
                            f"sum by (namespace, serving_pool, type, status, reason) ({metric(_CONDITION)})",
                            "{{serving_pool}} {{type}} {{status}} {{reason}}",
                        ),
                    ),
                    shape="table",
                ),
                Panel(
                    "Wanted and ready instances",
                    "By pool. Good: equal. Bad: ready stays below wanted. Do: `kubectl describe` the pool's pods: "
                    "Unschedulable, ImageUnavailable and CrashLoop are said in Degraded, too.",
                    (
                        (
                            f"sum by (serving_pool, pool, count) ({metric('ballast_operator_instances')})",
                            "{{serving_pool}} {{pool}} {{count}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Scaling",
            (
                Panel(
                    "Wanted by scaling",
                    "Instances by stage that the last round asked for or advised, where scaling is on. Good: follows "
                    "the traffic, as Wanted and ready instances do. Bad: they stay apart. Do: `ballast explain "
                    "scaling` says what holds it.",
                    (
                        (
                            f"sum by (serving_pool, pool, stage) ({metric('ballast_operator_scaling_instances')})",
                            "{{serving_pool}} {{pool}} {{stage}}",
                        ),
                    ),
                ),
                Panel(
                    "Rounds of scaling by reason",
                    "Where scaling is on. Good: mostly no change. Bad: Waiting for long (a gateway is silent), or up "
                    "and down in turn. Do: see the gateways; widen the stabilisation.",
                    ((total("ballast_operator_scaling_decisions_total", by="serving_pool, reason"), "{{reason}}"),),
                    unit="ops",
                ),
                Panel(
                    "Rehearsals",
                    "What came of them, and the P90 of their time, with `ratio.rehearse`. Good: chosen. Bad: "
                    "out-of-budget, silent, failed: arithmetic decides. Do: raise the budget; the last decision says "
                    "why.",
                    (
                        (total("ballast_operator_rehearsals_total", by="outcome"), "{{outcome}} a second"),
                        (
                            "histogram_quantile(0.9, sum by (le) "
                            "(rate(ballast_operator_rehearsal_seconds_bucket[$__rate_interval])))",
                            "P90 s",
                        ),
                    ),
                ),
                Panel(
                    "Requests of emptied endpoints",
                    "What became of requests on endpoints that were emptied. Good: moved, finished. Bad: lost: pods "
                    "ended before they were empty. Do: raise `scaleDown.drainTimeoutS`.",
                    ((total("ballast_gateway_drained_requests_total", by="outcome"), "{{outcome}}"),),
                    unit="ops",
                ),
            ),
        ),
        (
            "The operator",
            (
                Panel(
                    "Looks by result",
                    "Looks (reconciles) a second. Good: done. Bad: refused (an object cannot be written), failed (the "
                    "API server is away, or a fault of ours). Do: Degraded says which object; the log has the rest.",
                    (
                        (
                            "sum by (kind, result) (rate(ballast_operator_looks_total[$__rate_interval]))",
                            "{{kind}} {{result}}",
                        ),
                    ),
                    unit="ops",
                ),
                Panel(
                    "Time of a look",
                    "P99 by kind. Good: below 1 s. Bad: above 5 s: the API server is slow or throttles. Do: see its "
                    "metrics.",
                    (
                        (
                            "histogram_quantile(0.99, sum by (le, kind) "
                            "(rate(ballast_operator_look_seconds_bucket[$__rate_interval])))",
                            "{{kind}}",
                        ),
                    ),
                    unit="s",
                ),
                Panel(
                    "Foreign edits",
                    "Objects that somebody else changed or deleted, and that were set back. Good: none. Bad: without "
                    "end: another controller writes the same fields. Do: the Events `EditReverted` say who and which.",
                    (
                        (
                            total("ballast_operator_edits_reverted_total", by="serving_pool, kind"),
                            "{{serving_pool}} {{kind}}",
                        ),
                    ),
                    unit="ops",
                ),
            ),
        ),
        (
            "Settings and certificates of gateways",
            (
                Panel(
                    "Settings",
                    "Gateways whose newest settings are refused, and texts that were taken or refused. Good: 0 "
                    "refused. Bad: 1: those before are in force. Do: Degraded and the gateway's log say why.",
                    (
                        (
                            f"sum by (serving_pool) ({metric('ballast_gateway_settings_refused')})",
                            "refusing: {{serving_pool}}",
                        ),
                        (total("ballast_gateway_settings_texts_total", by="result"), "{{result}} a second"),
                        (f"max by (pod) ({metric('ballast_gateway_settings_generation')})", "generation: {{pod}}"),
                    ),
                ),
                Panel(
                    "Versions",
                    "Gateways by version. Good: one. Bad: two outside of a rollout. Do: `kubectl rollout status`.",
                    ((f"sum by (version) ({metric('ballast_gateway_build_info')})", "{{version}}"),),
                ),
                Panel(
                    "Certificates",
                    "Days until the certificate that is shown to clients expires, where TLS is spoken. Good: above 7. "
                    "Bad: below: nobody renews the Secret. Do: renew it; a running gateway takes it at once.",
                    (
                        (
                            "min by (serving_pool, face) ("
                            + metric("ballast_gateway_tls_certificate_expiry_timestamp_seconds")
                            + " - time()) / 86400",
                            "{{serving_pool}} {{face}}",
                        ),
                    ),
                ),
                Panel(
                    "KV events",
                    "Endpoints by what is known of their caches, and events that were missed, where KV events are on. "
                    "Good: complete. Bad: partial for long, unfilled gaps. Do: a longer `buffer_steps`.",
                    (
                        (f"max by (knowledge) ({metric('ballast_gateway_kv_endpoints')})", "{{knowledge}}"),
                        (total("ballast_gateway_kv_gaps_total", by="outcome"), "gaps {{outcome}}"),
                    ),
                ),
            ),
        ),
    ),
)
