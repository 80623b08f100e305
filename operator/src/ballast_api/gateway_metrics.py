"""The metrics of gateways."""

from __future__ import annotations

from typing import Final

from ballast_api.metric_declaring import declared

GATEWAY: Final = (
    *declared(
        "ballast_gateway",
        # Requests and their latencies.
        (
            "requests_total",
            "counter",
            "model outcome reason",
            "Requests that have ended.",
            "By `outcome`: completed; routed (picker face: sent to its endpoint by a proxy that does not show how it "
            "ended); answered (`/v1/models`: no generation); invalid (the client's fault, `reason` names it); rejected "
            "and failed (ours: see `ballast_gateway_rejections_total` and `ballast_gateway_failed_legs_total`); "
            "cancelled (clients leave: look at TTFT).",
        ),
        (
            "requests_in_flight",
            "gauge",
            "",
            "Requests of this gateway in the ledger: dispatched or waiting.",
            "Grows without end: arrivals exceed capacity; add decode pods. The sum over gateways and workers is "
            "the fleet's.",
        ),
        (
            "requests_followed",
            "gauge",
            "",
            "Requests of other gateways in the ledger.",
            "0 while others have some in flight: see `/ballast/v1/view`.",
        ),
        (
            "time_to_first_token_seconds",
            "histogram",
            "model",
            "Arrival to first token of streams.",
            "(Of whole answers: inside.) Up: see which part of it, `ballast_gateway_time_to_first_token_part_seconds`.",
        ),
        (
            "time_to_first_token_part_seconds",
            "histogram",
            "part",
            "Parts of the time to first token of streams.",
            "`wait` (arrival to the last dispatch) up: every endpoint is full, add engines, or legs fail first. "
            "`prefill` (the prefill leg) up: prefill is short. `decode` (its end, or the dispatch where there is none, "
            "to the first token) up: hand-offs or decode batches are slow.",
        ),
        (
            "time_per_output_token_seconds",
            "histogram",
            "model",
            "Mean gap between tokens after the first, by stream.",
            "Up: decode batches are too large; add decode pods.",
        ),
        (
            "request_duration_seconds",
            "histogram",
            "model",
            "Arrival to end of completed requests.",
            "Follows from the two above and from output lengths.",
        ),
        (
            "prompt_tokens_total",
            "counter",
            "model",
            "Prompt tokens, estimated for text.",
            "The traffic's token rate; its ratio to the output's moves the right P:D ratio.",
        ),
        ("output_tokens_total", "counter", "model", "Output tokens.", "As `ballast_gateway_prompt_tokens_total`."),
        (
            "placed_prompt_tokens_total",
            "counter",
            "prefix",
            "Prompt tokens of dispatches, by whether their endpoint is believed to hold them.",
            "The share of `hit` falls: prompts share less, caches are too small, or requests of one prefix are spread; "
            "always 0 where no policy reads prefixes.",
        ),
        # Objectives.
        (
            "objective_requests_total",
            "counter",
            "objective threshold result",
            "Requests that have ended, by what they were against the objective of their class.",
            "See which threshold a class misses. `unknown`: pods behind a picker lack their agent.",
        ),
        (
            "objective_target_ratio",
            "gauge",
            "objective",
            "Share of requests that must meet every threshold.",
            "Constant: alerts compare with it.",
        ),
        # The queue.
        (
            "requests_waiting",
            "gauge",
            "",
            "Requests that wait for capacity.",
            "Above 0 for long: every endpoint is full; add engines.",
        ),
        (
            "objective_waiting_requests",
            "gauge",
            "objective",
            "Requests that wait for capacity, by the objective of their class.",
            "One class waits and others do not: its priority is lower, or it may go to fewer endpoints.",
        ),
        (
            "objective_oldest_wait_seconds",
            "gauge",
            "objective",
            "How long the oldest waiting request of a class has waited; 0 if none waits.",
            "Near the class's TTFT: it will miss it. Grows while others are served: starved by higher priorities.",
        ),
        (
            "expected_wait_seconds",
            "gauge",
            "",
            "Expected time until what waits now has been dispatched.",
            "At the rate of the last seconds; near 0.1 to 0.2 `maxTtftS`: requests are being shed.",
        ),
        (
            "rejections_total",
            "counter",
            "reason",
            "Requests that got no endpoint.",
            "`no-endpoints`: pods are missing or unready; `saturated`: engines are full, see "
            "`ballast_gateway_shed_total`; `upstream-failed`: engines die or refuse, see their logs.",
        ),
        (
            "shed_total",
            "counter",
            "cause",
            "Requests rejected as saturated, by what made them one too many.",
            "`backlog` (what waits would take too long) and `waited` (it did): add engines; `queue-full`: `maxWaiting` "
            "of `bounded`; `in-flight`: raise `limits.maxInFlight`.",
        ),
        # Decisions.
        (
            "decision_seconds",
            "histogram",
            "",
            "Wall time of the Director for an event that had effects.",
            "Up: more endpoints, a dearer policy, or a machine short of processor time.",
        ),
        (
            "placements_total",
            "counter",
            "stage policy",
            "Placement decisions by the policy that made them, hand-offs included.",
            "Another policy than you set: see `/ballast/v1/settings`.",
        ),
        (
            "dispatches_total",
            "counter",
            "stage role pool",
            "Legs placed on an endpoint.",
            "One endpoint pool gets all or nothing: check roles and readiness.",
        ),
        (
            "handoffs_total",
            "counter",
            "",
            "Second looks at the decode endpoint when prefill had ended (late binding).",
            "Below the dispatches of stage prefill: prefills fail or clients leave.",
        ),
        (
            "cuts_total",
            "counter",
            "outcome",
            "Prompts that were planned to be cut, and those whose decode endpoint used the first part (proxy face).",
            "`used` far below `planned`: parts cannot be pulled; the log names the engine and the reason.",
        ),
        (
            "prediction_error_ratio",
            "gauge",
            "pool role quantity",
            "Median absolute error of the last predictions of prefill or step times, the mean of a pool's endpoints.",
            "Above 0.3 for long: the HardwareProfile is wrong, or other clients use the engines.",
        ),
        (
            "prediction_bias_ratio",
            "gauge",
            "pool role quantity",
            "Mean signed error of the last predictions, 1 at most: above 0, real times are longer than predicted.",
            "Far from 0 on one pool: calibrate its HardwareProfile.",
        ),
        (
            "judged_prefills_total",
            "counter",
            "",
            "Prefills that ended where they were placed, and could have been placed elsewhere.",
            "0: no policy in use reads prefill times, so there is nothing to judge by.",
        ),
        (
            "judged_prefill_seconds_total",
            "counter",
            "estimate",
            "Seconds from dispatch to the end of those prefills: `predicted`, `observed`, and predicted for the best "
            "`other` candidate.",
            "Divide by `ballast_gateway_judged_prefills_total`. `observed` far from `predicted`: calibrate the "
            "HardwareProfile. `other` below `predicted`: the policy weighs more than prefill, decodes or prefixes.",
        ),
        (
            "regret_seconds_total",
            "counter",
            "",
            "By how much those prefills took longer than the best other candidate promised, at least 0 each.",
            "By its ratio to `observed`: above 0.3 for long, placements or predictions are poor; docs/observe.md says "
            "what it cannot tell.",
        ),
        # Faults.
        (
            "retries_total",
            "counter",
            "",
            "Requests sent to another endpoint after a leg failed.",
            "Steady growth means one bad pod: the log names it.",
        ),
        (
            "failed_legs_total",
            "counter",
            "fault",
            "Legs that failed, by what the engine did.",
            "unreachable, broke, error (5xx), refused (4xx), busy (429), silent: see the engine's log.",
        ),
        (
            "ejections_total",
            "counter",
            "cause",
            "Endpoints that were ejected, by what showed it.",
            "`in-a-row`; `share` (an endpoint fails and others of its role do not); `probe` (it still does); `silent` "
            "(it hangs): see its reason in `/ballast/v1/endpoints`.",
        ),
        (
            "endpoint_health",
            "gauge",
            "role state",
            "Ready endpoints by the outcomes of their legs.",
            "`ejected` or `probing` for long means one that stays bad.",
        ),
        (
            "retry_budget",
            "gauge",
            "",
            "Retries that are allowed at the moment.",
            "Near 0: most legs fail; further requests get errors rather than a second try.",
        ),
        (
            "migrations_total",
            "counter",
            "outcome",
            "Orders to move a running decode, by outcome.",
            "`moved`; `ended` (the request was done first); `failed` (it stayed, the log has the reason): steadily "
            "more failed than moved means targets that are full or slow to prefill.",
        ),
        (
            "drained_requests_total",
            "counter",
            "outcome",
            "Requests of this gateway on draining endpoints, by what became of them.",
            "`moved`, `finished` (there); `lost`: pods end before they are empty, see `scaleDown.drainTimeoutS`.",
        ),
        (
            "migration_pause_seconds",
            "histogram",
            "",
            "From the cut of a stream to the target's first token.",
            "Up: targets compute much after the cut; is prefix caching on? Behind a picker agents have it: "
            "`ballast_agent_migration_pause_seconds_total`.",
        ),
        (
            "rescues_total",
            "counter",
            "",
            "Streams that went on at another endpoint after theirs failed.",
            "Engines die or abort in the middle of streams.",
        ),
        (
            "watch_changes_total",
            "counter",
            "pulse",
            "Endpoints that the progress watch began to think otherwise of.",
            "suspected and steady in turn: it is slow at times, see `watch.patience`; lost: it hung, the log says for "
            "how long.",
        ),
        (
            "legs_left_total",
            "counter",
            "",
            "Legs that were left because their engine was silent.",
            "Their requests went on elsewhere where they could; find the engine in the log.",
        ),
        (
            "fallback_dispatches_total",
            "counter",
            "missing",
            "Requests that an endpoint of one role served whole, as no endpoint of the missing role was left for them.",
            "Its endpoints are all gone, ejected or have failed the request; the log says when it began and ended.",
        ),
        # Endpoints.
        (
            "endpoints",
            "gauge",
            "pool role state",
            "Endpoints that discovery knows.",
            "`unreachable`: scrapes fail; `draining` for long: requests do not end.",
        ),
        (
            "scrape_failures_total",
            "counter",
            "pool role",
            "Failed scrapes of endpoints.",
            "Network, or engines too busy to answer; raise `scrape.timeoutS`.",
        ),
        (
            "observation_age_seconds",
            "gauge",
            "pool role",
            "Age of the oldest last observation.",
            "Well above `scrape.intervalS`: the gateway or the engines are short of processor time.",
        ),
        (
            "endpoint_requests",
            "gauge",
            "endpoint pool role source",
            "Requests of an endpoint: running and waiting at its last scrape (`seen`), and by the ledger (`believed`).",
            "One far above the others of its pool: see its health, and why it is chosen in `/ballast/v1/decisions`. "
            "`seen` above `believed` for long: others send it requests, too.",
        ),
        (
            "endpoint_waiting_requests",
            "gauge",
            "endpoint pool role",
            "Requests that waited in an endpoint at its last scrape.",
            "Above 0 on decode endpoints: their KV cache is full. On one prefill endpoint only: it is slow.",
        ),
        (
            "endpoint_kv_usage_ratio",
            "gauge",
            "endpoint pool role source",
            "Share of an endpoint's KV cache in use: at its last scrape (`seen`), and by the ledger (`believed`).",
            "Above 0.9: preemptions are near; add decode pods. `believed` is without blocks that are kept for reuse.",
        ),
        (
            "endpoint_uncached_tokens",
            "gauge",
            "endpoint pool role",
            "Prompt tokens that an endpoint has still to compute.",
            "Grows on all prefill endpoints: add prefill pods.",
        ),
        (
            "endpoint_step_seconds",
            "gauge",
            "endpoint pool role",
            "Predicted time of a decode step at the endpoint's load now (decode and flexible endpoints).",
            "Above the TPOT that you promise: add decode pods. One alone: see the balance below.",
        ),
        (
            "endpoint_preemptions_total",
            "counter",
            "endpoint pool role",
            "Preemptions that an endpoint reports.",
            "Any growth: KV caches are too small for the batch; add decode pods or lower `--max-num-seqs`.",
        ),
        (
            "endpoint_moves_total",
            "counter",
            "endpoint pool role direction",
            "Running decodes that were ordered out of an endpoint or into it, by this gateway.",
            "The same endpoints both ways: rounds of moves are too eager; raise the policy's least gain.",
        ),
        (
            "decode_step_seconds_variance",
            "gauge",
            "",
            "Variance of the predicted step times over ready decode endpoints.",
            "Up while traffic is even: the fleet is out of balance; compare policies with `ballast simulate`.",
        ),
        (
            "decode_step_max_to_mean_ratio",
            "gauge",
            "",
            "Largest predicted step time over the mean, over ready decode endpoints; 1 is even.",
            "Above 1.3 for long with one kind of hardware: one endpoint is overloaded; is rescheduling on?",
        ),
        # Other gateways and agents.
        (
            "view_leads",
            "gauge",
            "",
            "Whether this gateway runs the rounds of moves of its fleet.",
            "The sum over a fleet is 1 but for moments; 0 for long: the Lease cannot be held.",
        ),
        (
            "view_agents",
            "gauge",
            "",
            "Agents of pods that are heard.",
            "Below the decode pods: see `/ballast/v1/view`.",
        ),
        ("view_peers", "gauge", "", "Other gateways that are heard.", "Below the others: see `/ballast/v1/view`."),
        (
            "view_oldest_source_seconds",
            "gauge",
            "",
            "Age of what the most silent source said last.",
            "Above 1: an agent or a gateway is busy or cut off; `/ballast/v1/view` names it.",
        ),
        # The process.
        (
            "settings_generation",
            "gauge",
            "",
            "Texts of the settings file that were taken, the one at the start included.",
            "Grows with each change; unlike among gateways: one has not seen it yet.",
        ),
        (
            "settings_refused",
            "gauge",
            "",
            "Whether the settings file has a text that is refused: the settings before are in force.",
            "1: the log and the ServingPool's Degraded say why.",
        ),
        (
            "settings_texts_total",
            "counter",
            "result",
            "Changes of the settings file, by what became of them.",
            "`refused` grows: see `ballast_gateway_settings_refused`.",
        ),
        (
            "tls_reloads_total",
            "counter",
            "face outcome",
            "Changes of certificate files, by what came of them.",
            "`failed`: new files cannot be used; the log says why.",
        ),
        (
            "tls_refused_total",
            "counter",
            "face reason",
            "Connections that came to nothing, by reason.",
            "`plaintext` (TLS is required), `tls` (no common version or cipher, or the client does not trust the "
            "certificate), `timeout`, `crowded` (a flood), `gone`.",
        ),
        (
            "tls_certificate_expiry_timestamp_seconds",
            "gauge",
            "face",
            "When the certificate that is shown to clients expires.",
            "Near: nobody renews the Secret.",
        ),
        (
            "tenant_requests_total",
            "counter",
            "tenant",
            "Requests that were let in, by the tenant whose key or token they had.",
            "Who sends how much; the log has the same name.",
        ),
        (
            "tenant_prompt_tokens_total",
            "counter",
            "tenant",
            "Prompt tokens of their requests that have ended, estimated for text, as limits count them.",
            "To bill by, or to set limits by.",
        ),
        (
            "tenant_output_tokens_total",
            "counter",
            "tenant",
            "Output tokens of their requests that have ended; behind Envoy only where agents tell of them.",
            "As `ballast_gateway_tenant_prompt_tokens_total`.",
        ),
        (
            "tenant_refused_total",
            "counter",
            "tenant limit",
            "Requests that were refused with 429 `tenant-limit`.",
            "Grows: the tenant has all of its share; `/ballast/v1/tenants` says what is left of it.",
        ),
        (
            "kv_batches_total",
            "counter",
            "",
            "Batches of KV events that were taken.",
            "Stands still: engines are idle, or the topic is wrong.",
        ),
        (
            "kv_unreadable_total",
            "counter",
            "",
            "Messages that are no batch of KV events.",
            "Another version of vLLM, or something else on that port.",
        ),
        (
            "kv_gaps_total",
            "counter",
            "outcome",
            "Times that KV events were missed, by what came of it.",
            "`filled`: the network or the gateway was slow; `unfilled`: knowledge was lost.",
        ),
        (
            "kv_endpoints",
            "gauge",
            "knowledge",
            "Endpoints by what is known of their caches.",
            "`partial` for long: a gap that was not repeated (a longer `buffer_steps`), or engines do not publish.",
        ),
        (
            "kv_blocks",
            "gauge",
            "",
            "Blocks that endpoints report as cached.",
            "Stands still: as `ballast_gateway_kv_batches_total`.",
        ),
        (
            "build_info",
            "gauge",
            "version",
            "Always 1.",
            "Versions differ between replicas during a rollout.",
        ),
    ),
)
