"""Every metric that Ballast exports, declared once: gateway, agent and operator make theirs from here, and so do the
reference page and the checks of dashboards, rules and alerts.

Names are as Prometheus shows them. Units are in the names: seconds, tokens, ratio in [0, 1]; else a count.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ballast_api.gateway_metrics import GATEWAY
from ballast_api.metric_declaring import Metric, declared

OPERATOR: Final = (
    *declared(
        "ballast_operator",
        (
            "looks_total",
            "counter",
            "kind result",
            "Looks (reconciles) by kind and result.",
            "`done`; `refused` (an object could not be written: Degraded says which); `failed` (tried again as a whole:"
            " the API server is away, or a fault of ours; see the log).",
        ),
        (
            "look_seconds",
            "histogram",
            "kind",
            "Time of one look.",
            "Up: the API server is slow, or throttles.",
        ),
        (
            "condition",
            "gauge",
            "namespace serving_pool type status reason",
            "1 for the status that a condition of a ServingPool has.",
            "Available False, Degraded True: `kubectl describe servingpool` says what to edit.",
        ),
        (
            "instances",
            "gauge",
            "namespace serving_pool pool count",
            "Instances of a pool.",
            "`ready` below `wanted` for long: `kubectl describe` its pods.",
        ),
        (
            "edits_reverted_total",
            "counter",
            "namespace serving_pool kind",
            "Foreign edits and deletions of objects of a ServingPool that were set back, by the kind of the object.",
            "Grows without end: another controller writes the same fields. The Events `EditReverted` name object, "
            "fields and field manager.",
        ),
        (
            "scaling_instances",
            "gauge",
            "namespace serving_pool pool stage",
            "Instances by stage that the last round asked for (mode Auto) or advised (Advisory).",
            "Unlike `ballast_operator_instances` for long: budget, clamps or a drain; `ballast explain scaling`.",
        ),
        (
            "scaling_decisions_total",
            "counter",
            "namespace serving_pool reason",
            "Rounds of scaling by the reason of their decision.",
            "`Waiting`: a gateway was silent, and nothing was decided. Events have the reasons, too.",
        ),
        (
            "rehearsals_total",
            "counter",
            "namespace serving_pool outcome",
            "Rehearsals of scaling by what came of them; `chosen` decided, for the others the equilibrium did.",
            "`out-of-budget`: raise `ratio.rehearse.cpuS` or `timeoutS`. `put-off`: another one ran, or the last one"
            " failed. `silent`: a gateway kept its recorded traffic. `outdated`: the traffic changed meanwhile.",
        ),
        (
            "rehearsal_seconds",
            "histogram",
            "",
            "Time of a rehearsal, from its beginning to its end: a change of instances waits so long for it.",
            "Near `ratio.rehearse.timeoutS`: the fleet is large or its traffic dense; see their outcomes.",
        ),
    ),
)

AGENT: Final = (
    *declared(
        "ballast_agent",
        ("requests_held", "gauge", "", "Requests that are held now.", "Grows without end: the engine is full."),
        (
            "requests_passing",
            "gauge",
            "",
            "Requests that are passed to the engine as they are, now.",
            "High: requests come by nobody's plan.",
        ),
        (
            "requests_passed_total",
            "counter",
            "",
            "Requests that were passed on as they are.",
            "Grows: a proxy sends requests without plans; see docs/agent.md.",
        ),
        ("requests_total", "counter", "outcome", "Held requests that are over.", "`failed`: see leg failures."),
        (
            "refusals_total",
            "counter",
            "reason",
            "Requests that were refused.",
            "The reason names what is wrong with the plan or the request.",
        ),
        ("leg_failures_total", "counter", "fault", "Legs that failed.", "See the engine's log."),
        ("migrations_total", "counter", "outcome", "Moves of running decodes.", "As the gateway's."),
        (
            "migration_pause_seconds_total",
            "counter",
            "",
            "Silence in moved streams.",
            "Its ratio to the moves up: as `ballast_gateway_migration_pause_seconds`.",
        ),
        (
            "rescues_total",
            "counter",
            "",
            "Streams that went on after their engine had failed.",
            "Engines die or abort in the middle of streams.",
        ),
        ("output_tokens_total", "counter", "", "Output tokens of held requests.", "The pod's token rate."),
        ("pod_api_readers", "gauge", "", "Gateways that listen to events.", "Below the gateways: one is cut off."),
        (
            "pod_api_readers_cut_off_total",
            "counter",
            "",
            "Readers of events that were too slow.",
            "A gateway is short of processor time.",
        ),
        (
            "pod_api_refused_total",
            "counter",
            "",
            "Calls that were not signed as they must be.",
            "Somebody else calls the pod API, or a token has not reached a pod yet.",
        ),
    ),
)

METRICS: Final[Mapping[str, Metric]] = MappingProxyType({each.name: each for each in (*GATEWAY, *OPERATOR, *AGENT)})
"""All of them by name."""
