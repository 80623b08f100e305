"""The Kubernetes operator: kopf handlers (thin) -> gather -> plan -> apply -> verdict.

`handlers` turns watch events into keys, `controller` queues them, `reconcile` takes one key at a time. Each step hands
a frozen value to the next ones:

    gather(cluster)                   -> Observed   what is there
    plan(observed)                    -> Plan       what must be there, and what keeps the cluster from it
    apply(cluster, observed, plan)    -> Outcome    what was written, what was refused
    verdict(observed, plan, outcome)  -> Verdict    the status, and when to look again

`planning`, `status` and all that they import are pure: no Kubernetes client, clock or event loop. Only `api.cluster`
sends requests to the API server; looks read what `api.cached` keeps. The contract "rooms of the operator" in
pyproject.toml states who may import whom.
"""
